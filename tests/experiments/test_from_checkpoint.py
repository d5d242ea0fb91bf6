"""`lightning-fire compare RECIPE --from CKPT`: what the runs begin with, and when they are run again."""

import pytest
import torch
import yaml
from instantaneous_runs import Instantaneous
from lightning.pytorch.callbacks import LearningRateFinder, ModelCheckpoint
from small_training import PlainData, PlainModule, assert_same_weights, initial_state, snapshots_of
from small_training import fitted as fitted_without
from tiny_recipe import FIRE, error_of, tiny_recipe

from lightning_fire import EveryNEpochs, FullReset, L2Init, PlasticityCallback, PlasticityInjection
from lightning_fire.checkpoints.earlier_training import digest_of
from lightning_fire.cli import main
from lightning_fire.experiments import compare as compare_command
from lightning_fire.experiments.chunks import ChunkedRun, Metric
from lightning_fire.experiments.earlier_weights import EarlierWeights
from lightning_fire.methods import FIRE as Fire


def fitted(*callbacks, **options):
    return fitted_without(*callbacks, enable_checkpointing=True, **options)


@pytest.fixture
def old(tmp_path):
    """The checkpoint of an earlier training, and its module."""
    module = fitted(ModelCheckpoint(tmp_path, "old"), data=PlainData(1), max_epochs=2, seed=7)
    return tmp_path / "old.ckpt", module


def start(path, **options):
    return EarlierWeights(str(path), digest_of(path), **options)


def test_a_method_acts_when_training_begins_on_the_old_weights(old):
    path, module = old
    fire = snapshots_of(PlasticityCallback)(Fire())
    fitted(fire, start(path), data=PlainData(), max_epochs=2)
    ((before, _, _),) = fire.seen
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())


def test_a_search_before_training_starts_from_the_old_weights_too(old, tmp_path):
    path, module = old
    fire, search = snapshots_of(PlasticityCallback)(Fire()), LearningRateFinder(num_training_steps=3, update_attr=False)
    fitted(fire, search, start(path), data=PlainData(), max_epochs=1, default_root_dir=tmp_path)
    ((before, _, _),) = fire.seen
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())


def test_a_head_is_injected_into_the_old_weights(old):
    path, module = old
    head = fitted(PlasticityCallback(PlasticityInjection("net.5")), start(path), data=PlainData(), max_epochs=1).net[5]
    (frozen,) = head.frozen
    assert torch.equal(frozen.weight, module.net[5].weight)


def test_initial_values_are_those_of_the_new_module(old):
    reset = snapshots_of(PlasticityCallback)(FullReset())
    fitted(reset, start(old[0]), data=PlainData(), max_epochs=1)
    ((_, after, _),) = reset.seen
    assert all(torch.equal(after[name], tensor) for name, tensor in initial_state().items())


def test_scratch_is_a_training_without_the_checkpoint(old):
    scratch = fitted(start(old[0], only_data=True), data=PlainData(), max_epochs=1)
    assert_same_weights(scratch, fitted_without(data=PlainData(), max_epochs=1))


def test_scratch_of_a_module_that_has_loaded_the_checkpoint_is_an_error(old):
    path, module = old
    with pytest.raises(ValueError, match=r"PlainModule has the weights of .*old\.ckpt before they are loaded"):
        fitted(start(path, only_data=True), module=module, data=PlainData(), max_epochs=1)


def test_without_a_method_training_continues_with_the_optimizer(old):
    path, module = old
    continued = fitted(start(path), data=PlainData(), max_epochs=1)
    content = torch.load(path, weights_only=True)
    torch.manual_seed(0)
    own = PlainModule()
    own.load_state_dict(content["state_dict"])
    optimizer = own.configure_optimizers()
    optimizer.load_state_dict(content["optimizer_states"][0])
    for batch in PlainData().train_dataloader():
        optimizer.zero_grad()
        own.training_step(batch, 0).backward()
        optimizer.step()
    assert_same_weights(continued, own)
    assert any(not torch.equal(a, b) for a, b in zip(own.parameters(), module.parameters(), strict=True))


def test_an_interrupted_run_continues_from_its_own_checkpoint(old, tmp_path):
    def method():
        return PlasticityCallback(FullReset())

    saved = ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1)
    whole = fitted(method(), start(old[0]), saved, data=PlainData(), max_epochs=3)
    rest = fitted(method(), start(old[0]), data=PlainData(), max_epochs=3, seed=1, ckpt_path=tmp_path / "epoch=1.ckpt")
    assert_same_weights(whole, rest)


def test_other_schedules_stay_and_methods_at_each_step_begin_with_the_data(old):
    every = PlasticityCallback(Fire(), when=EveryNEpochs(2))
    l2_init = PlasticityCallback(L2Init(0.1), start_chunk=1)
    fitted(every, l2_init, start(old[0]), data=PlainData(), max_epochs=3)
    assert every.num_events == 1 and l2_init.acts_now


def test_weights_that_do_not_fit_stop_also_a_run_from_scratch(old, tmp_path):
    torch.save({"net.0.weight": torch.ones(2, 2)}, tmp_path / "other.pt")
    for options in ({}, {"only_data": True}):
        with pytest.raises(ValueError, match=r"other.pt does not fit PlainModule: it lacks net.0.bias"):
            fitted(start(tmp_path / "other.pt", **options), data=PlainData())
    with pytest.raises(ValueError, match="has changed since the comparison began"):
        fitted(EarlierWeights(str(old[0]), "0"), data=PlainData())


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Instantaneous.write_logs(tmp_path / "logs", ["vanilla", "fire", "scratch"])
    monkeypatch.setattr(compare_command, "engine_for", Instantaneous)
    torch.save({"weight": torch.ones(2, 2)}, "last.pt")
    return tiny_recipe(tmp_path, {"fire": FIRE})


def compare(recipe, *words):
    return main(["compare", str(recipe), "--output", "out", "--seeds", "1", *words])


def test_scratch_and_vanilla_are_added_and_another_checkpoint_is_another_run(recipe, tmp_path, capsys):
    numbers = compare(recipe, "--from", "last.pt", "--methods", "fire")
    assert list(numbers.index.get_level_values("method")) == ["vanilla", "scratch", "fire"]
    assert "the validation data must not be part of the training data of last.pt" in capsys.readouterr().out
    settings = {m: yaml.safe_load((tmp_path / f"out/{m}/seed0/run.yaml").read_text()) for m in ("scratch", "fire")}
    starts = {m: of["trainer"]["callbacks+"][-1]["init_args"]["only_data"] for m, of in settings.items()}
    assert starts == {"scratch": True, "fire": False} and not (tmp_path / "out/shared_start").exists()

    marker = tmp_path / "out/fire/seed0/finished.json"
    before = marker.stat().st_mtime_ns
    compare(recipe, "--from", "last.pt", "--methods", "fire")
    assert marker.stat().st_mtime_ns == before and "training again" not in capsys.readouterr().out
    torch.save({"weight": torch.zeros(2, 2)}, "last.pt")
    compare(recipe, "--from", "last.pt", "--methods", "fire")
    assert "training again: vanilla seed 0, scratch seed 0, fire seed 0" in capsys.readouterr().out


def test_jobs_of_a_scheduler_run_only_what_they_are_told(recipe):
    numbers = compare(recipe, "--from", "last.pt", "--methods", "scratch", "--no-report")
    assert list(numbers.index.get_level_values("method")) == ["scratch"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "last.pt does not exist"),
        (b"not a checkpoint", "last.pt is not a complete checkpoint of torch"),
        ({"a": 1}, "last.pt holds no tensors by name"),
    ],
)
def test_a_file_that_is_no_checkpoint_is_one_sentence_before_training(recipe, content, message, tmp_path, capsys):
    (tmp_path / "last.pt").unlink()
    if isinstance(content, bytes):
        (tmp_path / "last.pt").write_bytes(content)
    elif content:
        torch.save(content, "last.pt")
    error = error_of(["compare", str(recipe), "--from", "last.pt", "--output", "out"], capsys)
    assert message in error and not (tmp_path / "out").exists()


def test_numbers_of_new_data_begin_with_its_first_epoch():
    import numpy as np

    steps = np.arange(0, 12, 4)
    curves = {"plasticity/chunk": (steps, np.ones(3)), "val/accuracy": (steps + 3, np.array([0.2, 0.4, 0.3]))}
    run = ChunkedRun(curves, Metric())
    numbers = run.measures(run)
    assert (numbers["first_epoch_after"], numbers["final"], numbers["epochs_to_reference"]) == (0.2, 0.3, 2.0)
    assert numbers["area"] == pytest.approx(0.3)
