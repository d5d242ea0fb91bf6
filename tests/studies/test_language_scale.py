"""The study of FIRE's scale for language models: its networks, one batch, and the command on tiny phases."""

import copy
import sys

import numpy as np
import pandas as pd
import pytest
import torch

from lightning_fire.data.mixture import Mixture
from lightning_fire.data.token_source import Tokens, TokenSource
from lightning_fire.functional import fire
from lightning_fire.methods.fire import scales_of
from studies import language_scale as study

pytest.importorskip("transformers")


@pytest.fixture
def tiny(monkeypatch):
    """Phases of a few steps."""
    short = {"FIRST": (1, 2), "USUAL_SECOND": 2, "OTHER_SECOND": 3}
    for name, value in {"BYTES": 1000, "VAL_BLOCKS": 2, "STDS": (0.1,), **short}.items():
        monkeypatch.setattr(study, name, value)


@pytest.fixture
def text(tiny, monkeypatch):
    """A text instead of both, in memory."""
    tokens = Tokens(np.random.default_rng(0).integers(100, size=1000).astype(np.uint8), "uint8")
    monkeypatch.setattr(study, "texts", lambda root: dict.fromkeys(("kjv", "python"), TokenSource(tokens, tokens)))
    return tokens


@pytest.mark.parametrize("name", study.NETS)
def test_auto_is_the_papers_scale_of_every_weight(name):
    net = study.initial_net(name, 0.02, 0)
    assert set(scales_of(net, study.WHERE.select(net)).values()) == {"paper"}


@pytest.mark.parametrize("name", study.NETS)
def test_initial_weights_have_their_standard_deviation(name):
    net = study.initial_net(name, 0.1, 0)
    stds = {view.name: float(view.read().std()) for view in study.WHERE.select(net)}
    for weight, std in stds.items():
        assert std == pytest.approx(0.05 if "c_proj" in weight else 0.1, rel=0.05)  # 0.1 / √(2 · 2 blocks)


def test_norms_of_an_event():
    net = study.initial_net("GPT", 0.02, 0)
    weight = net.transformer.h[0].mlp.c_fc.weight
    old, new = weight.detach().clone(), fire(weight.detach(), steps=5)
    ratio = study.act(net, "paper")["transformer.h.0.mlp.c_fc.weight"]
    assert ratio == pytest.approx(float(new.norm() / old.norm())) and ratio > 4  # small weights, made large
    torch.testing.assert_close(weight.detach(), new)


def test_a_batch_trains_each_network_as_alone(text):
    """Against a plain loop with AdamW and `clip_grad_norm_`."""
    settings = [study.Setting("GPT", 0.1, 1e-2, 4, 4, "vanilla", seed, "") for seed in (0, 1)]
    nets = [study.initial_net("GPT", 0.1, setting.seed) for setting in settings]
    mixture = Mixture([1.0], [len(text)], study.BLOCK, study.BATCH, [1, 0])
    alone = copy.deepcopy(nets[1])
    decayed = [p for p in alone.parameters() if p.ndim >= 2]
    others = [p for p in alone.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW([{"params": decayed}, {"params": others, "weight_decay": 0.0}], weight_decay=0.1)
    for step, rate in enumerate((1e-2, 1e-2, 7e-3, 4e-3)):  # a warm-up of one step, then from the rate to a tenth
        for group in optimizer.param_groups:
            group.update(lr=rate, betas=(0.9, 0.95))
        tokens, targets = study.MixedBatches([text], mixture, study.BLOCK, 4)[torch.tensor(step)]
        torch.nn.functional.cross_entropy(alone(tokens).flatten(0, 1), targets.flatten()).backward()
        torch.nn.utils.clip_grad_norm_(alone.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    study.train(nets, settings, 0)
    for (name, own), value in zip(nets[1].named_parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(own, value, rtol=1e-3, atol=1e-5, msg=name)


def test_methods_of_a_seed_share_phase_1(text):
    settings = [study.Setting("GPT", 0.1, 3e-3, 2, 2, method, 3, "") for method in ("paper", "vanilla", "vanilla")]
    paper, vanilla, again = study.run_batch(settings)
    assert paper["phase_1"] == vanilla["phase_1"] and vanilla["final"] == pytest.approx(again["final"])
    assert abs(paper["after"] - vanilla["after"]) > 0.01 and vanilla["ratio"] == 1 != paper["ratio"]


def test_the_table_pairs_seeds(tmp_path):
    """The paper's scale is 0.1, 0.2, 0.3 below vanilla: mean -0.2, half an interval 4.303 · 0.1 / √3 = 0.248."""
    final = {"vanilla": [1.0, 1.5, 2.0], "paper": [0.9, 1.3, 1.7], "procrustes": [1.0, 1.5, 2.0]}
    case = {"net": "GPT", "std": 0.02, "rate": 0.003, "first": 150, "second": 300}
    rows = [
        {**case, "method": method, "seed": seed, "final": value, "after": 3, "ratio": {"paper": 2.0}.get(method, 1.0)}
        for method, values in final.items()
        for seed, value in enumerate(values)
    ]
    runs = pd.DataFrame(rows).sample(frac=1, random_state=0)
    (row,) = study.table(runs).splitlines()[2:]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[:6] == ["`GPT`", "0.02", "0.003", "150", "300", "1.500 ± 0.500"]
    assert cells[6:10] == ["-0.200 (-0.448 to +0.048)", "–", "0", "+0.200 (-0.048 to +0.448)"]
    assert cells[10:] == ["2.00", "1.00", "3.0", "3.0", "3.0"]
    assert study.gains(runs).gain.mean() == pytest.approx(-0.2)


@pytest.mark.slow(10)
def test_the_study_ends_with_its_table_and_its_figure(tiny, tmp_path, capsys, monkeypatch):
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "kjv.txt").write_bytes(bytes(range(97, 123)) * 100)
    words = [str(tmp_path / "out"), "--others", "--root", str(tmp_path), "--seeds", "2", "--jobs", "1"]
    monkeypatch.setattr(sys, "argv", ["language_scale", *words])
    threads = torch.get_num_threads()
    study.main()
    torch.set_num_threads(threads)
    first = capsys.readouterr().out
    assert first.count("\n| `GPT` | 0.1 | 0.003 | ") == 2 and "| nan" not in first and "rank correlation" in first
    assert (tmp_path / "out" / "language_scale.png").stat().st_size > 5_000
    study.main()  # nothing is run again
    assert "batches" not in capsys.readouterr().out
