"""Files of `torch.save` with several networks: which are taken, and what is said about the others."""

import re

import pytest
import torch
from checkpoint_files import draw, error_of, reinit, write_safetensors
from torch import nn

from lightning_fire.checkpoints.networks import networks_of, states_of
from lightning_fire.cli import main
from lightning_fire.functional import fire

OPTIMIZER = {"state": {0: {"exp_avg": draw(3, 3)}}, "param_groups": [{"params": [0]}]}


def state(seed: int) -> dict[str, torch.Tensor]:
    return {"fc.weight": draw(4, 3, seed=seed), "fc.bias": draw(4, seed=seed)}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 4)


CONTENTS = {  # content: keys of its networks
    "timm": ({"state_dict": state(0), "state_dict_ema": state(1), "epoch": 3}, ["state_dict", "state_dict_ema"]),
    "ema": ({"model": state(0), "model_ema": state(1), "optimizer": OPTIMIZER}, ["model", "model_ema"]),
    "nested ema": ({"model": state(0), "ema": {"decay": 0.9, "module": state(1)}}, ["model", "ema.module"]),
    "agent": (
        {"actor_state_dict": state(0), "critic_state_dict": state(1), "optimizer_state_dict": OPTIMIZER},
        ["actor_state_dict", "critic_state_dict"],
    ),
    "gan": ({"nets": {"G": state(0), "D": state(1)}, "rng": draw(2, 2)}, ["nets.G", "nets.D"]),
    "modules": ({"model": Net(), "ema": Net()}, ["model", "ema"]),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_several_networks_need_a_choice(tmp_path, name):
    content, keys = CONTENTS[name]
    torch.save(content, tmp_path / "in.pt")
    unsafe = ["--unsafe-pickle"] if name == "modules" else []
    for words in (["diagnose", tmp_path / "in.pt"], ["reinit", tmp_path / "in.pt", "-o", tmp_path / "out.pt"]):
        message = error_of(*words, *unsafe)
        assert "holds 2 networks: " + ", ".join(f"{key} (2 tensors)" for key in keys) in message
        assert message.endswith("--key KEY …")
    assert not (tmp_path / "out.pt").exists()


@pytest.mark.parametrize("name", CONTENTS)
def test_the_chosen_networks_change_and_the_others_are_named(tmp_path, name, capsys):
    content, keys = CONTENTS[name]
    torch.save(content, tmp_path / "in.pt")
    unsafe = ["--unsafe-pickle"] if name == "modules" else []
    old = networks_of(content)
    for chosen in (keys[:1], keys[1:], keys):
        words = [tmp_path / "in.pt", *unsafe, "--key", *chosen]
        rows = main(["diagnose", *map(str, words)])
        assert [row.name for row in rows] == ["fc.weight"] if len(chosen) == 1 else [f"{k}.fc.weight" for k in keys]
        capsys.readouterr()
        assert reinit(*words, "-o", tmp_path / "out.pt", "--force").changed == len(chosen)
        text = capsys.readouterr().out
        new = networks_of(torch.load(tmp_path / "out.pt", weights_only=False))
        for key in keys:
            weight = old[key]["fc.weight"].detach()
            assert torch.equal(new[key]["fc.weight"], fire(weight) if key in chosen else weight)
            assert torch.equal(new[key]["fc.bias"], old[key]["fc.bias"])
            assert (f"note: {key} in the file is" in text) == (key not in chosen)


def test_averages_that_are_lists_or_belong_to_callbacks_are_named(tmp_path, capsys):
    lists = {"model": state(0), "ema": {"shadow_params": [draw(4, 3)], "decay": 0.9}}
    callback = {"EMA": {"ema_weights": state(1)}}
    lightning = {"pytorch-lightning_version": "2.6.6", "state_dict": state(0), "callbacks": callback}
    for content, key in ((lists, "ema.shadow_params"), (lightning, "callbacks.EMA.ema_weights")):
        torch.save(content, tmp_path / "in.pt")
        assert reinit(tmp_path / "in.pt", "-o", tmp_path / "out.pt", "--force").changed == 1
        assert f"note: {key} in the file is an average, and not changed" in capsys.readouterr().out


@pytest.mark.parametrize(
    "content",
    [
        {"state_dict": state(0), "optimizer": OPTIMIZER, "hyper_parameters": {"weight": draw(2, 2)}},
        {
            "model": state(0),
            "normalizer": {"mean": draw(3)},
            "rng_states": [draw(2, 2)],
            "opt": {"state": [draw(2, 2)]},
        },
        {"model": state(0) | {"fc._extra_state": {"history": draw(2, 2)}}, "confusion": draw(2, 2)},
        state(0) | {"fc._extra_state": {"history": draw(2, 2)}},
    ],
)
def test_other_tensors_are_not_networks(content):
    assert [sorted(of_key) for of_key in networks_of(content).values()] == [["fc.bias", "fc.weight"]]


def test_a_wrong_key_is_an_error(tmp_path):
    torch.save({"model": state(0), "ema": state(1)}, tmp_path / "two.pt")
    torch.save({"model": state(0)}, tmp_path / "one.pt")
    assert "two.pt holds 2 networks: model" in error_of("diagnose", tmp_path / "two.pt", "--key", "state_dict")
    message = error_of("diagnose", tmp_path / "one.pt", "--key", "ema")
    assert re.search(r"--key: .*one.pt has no ema, but model$", message)


def test_a_reference_of_one_network_needs_no_key(tmp_path):
    torch.save({"model": state(0), "ema": state(1)}, tmp_path / "two.pt")
    torch.save({"model": state(0)}, tmp_path / "one.pt")
    (row,) = main(["diagnose", str(tmp_path / "two.pt"), "--key", "model", "--reference", str(tmp_path / "one.pt")])
    assert row.dfi_ratio == 1


@pytest.mark.parametrize("kind", ["pt", "safetensors"])
def test_averages_within_one_state_are_changed_or_named(tmp_path, capsys, kind):
    """The EMA of latent diffusion models has names without dots, which are not those of layers."""
    mangled = {"model_ema.modelfcweight": state(1)["fc.weight"]}
    layers = {f"model_ema.{name}": tensor for name, tensor in state(1).items()}
    for average, changed in ((mangled, 1), (layers, 2)):
        content = {f"model.{name}": tensor for name, tensor in state(0).items()} | average
        if kind == "safetensors":
            write_safetensors(tmp_path / "in.safetensors", content)
        else:
            torch.save(content, tmp_path / "in.pt")
        assert reinit(tmp_path / f"in.{kind}", "-o", tmp_path / f"out.{kind}", "--force").changed == changed
        note = "named as averages of weights, and not changed: model_ema.modelfcweight"
        assert (note in capsys.readouterr().out) == (changed == 1)


def test_float32_masters_are_named(tmp_path, capsys):
    apex = {"optimizer_state_dict": OPTIMIZER, "fp32_from_fp16_params": [[draw(4, 3)]]}
    torch.save({"model": state(0), "optimizer": apex}, tmp_path / "in.pt")
    reinit(tmp_path / "in.pt", "-o", tmp_path / "out.pt")
    key = "optimizer.fp32_from_fp16_params.0"
    assert f"note: {key} in the file is a copy of the weights from which training may" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"training": {"optimizer": {"state": {0: {"m": draw(4)}}, "param_groups": [3]}}}, {}),
        ({"optimizers": {"body": {"state": {0: {"m": draw(4)}}, "param_groups": [3]}}}, {}),
        ({"all": [[{"state": {0: {"m": draw(4)}}, "param_groups": [3]}]]}, {}),
        ({"opt": {"state": [{"m": draw(4), "do_wd": False}], "hypers": [3]}}, [{"do_wd": False}]),  # fastai's
    ],
)
def test_optimizer_states_are_dropped_at_any_depth(tmp_path, capsys, content, expected):
    torch.save({"model": state(0), **content}, tmp_path / "in.pt")
    reinit(tmp_path / "in.pt", "-o", tmp_path / "kept.pt")
    assert "note: optimizer states are kept" in capsys.readouterr().out
    reinit(tmp_path / "in.pt", "-o", tmp_path / "out.pt", "--drop-optimizer-states")
    assert "note: optimizer states are dropped" in capsys.readouterr().out
    (new,) = states_of(torch.load(tmp_path / "out.pt"))
    assert new["state"] == expected and [3] in new.values()
