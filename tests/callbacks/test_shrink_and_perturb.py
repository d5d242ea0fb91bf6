"""`ShrinkAndPerturb` through real fits over growing data."""

import pytest
import reference
import torch
from small_training import PlainModule, assert_same_weights, fitted, initial_state, snapshots_of
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tolerances import assert_near

from lightning_fire import EveryNSteps, Log, Parameters, PlasticityCallback, ShrinkAndPerturb

Snapshots = snapshots_of(PlasticityCallback)
PARAMETERS = {name for name, _ in PlainModule().named_parameters()}


@pytest.mark.parametrize("options", [{}, {"strength": 0.3}, {"strength": 0.6, "perturb": 0.1}])
def test_every_parameter_moves_towards_its_initial_value_and_no_buffer(options):
    callback = Snapshots(ShrinkAndPerturb(**options))
    fitted(callback)
    assert len(callback.seen) == 2
    for before, after, _ in callback.seen:
        for name in before:
            if name in PARAMETERS:
                target = initial_state()[name]
                strength = options.get("strength", 0.8)
                expected = reference.shrink_and_perturb(before[name], target, strength, options.get("perturb"))
                assert_near(after[name], expected)
            else:
                assert torch.equal(after[name], before[name]), name


def test_only_the_selected_parameters_move_and_only_their_optimizer_state_is_dropped():
    callback = Snapshots(ShrinkAndPerturb(where=Parameters(include=[r"net\.0"], exclude=["bias"])))
    module = fitted(callback)
    moved = {name for name, value in callback.seen[0][1].items() if not torch.equal(value, callback.seen[0][0][name])}
    assert moved == {"net.0.weight"}
    kept = {name for name, parameter in module.named_parameters() if parameter in callback.optimizer_state}
    assert kept == PARAMETERS - {"net.0.weight"}


def test_fresh_targets_are_new_at_each_event_and_the_same_in_each_run():
    runs = []
    for _ in range(2):
        callback = Snapshots(ShrinkAndPerturb(strength=1.0, fresh_seed=3))
        fitted(callback)
        runs.append([after["net.0.weight"] for _, after, _ in callback.seen])
    assert torch.equal(runs[0][0], runs[1][0])
    assert not torch.equal(runs[0][0], runs[0][1])
    assert not torch.equal(runs[0][0], initial_state()["net.0.weight"])
    for before, after, _ in callback.seen:
        assert torch.equal(after["net.1.running_mean"], before["net.1.running_mean"])  # buffers stay


def test_a_fresh_target_does_not_change_the_batches_that_follow():
    """The global random state is left alone: with strength 0 nothing happens at all."""
    with pytest.warns(UserWarning, match="ShrinkAndPerturb has changed no weight: they already have"):
        module = fitted(PlasticityCallback(ShrinkAndPerturb(strength=0.0, fresh_seed=0, optimizer_state="keep")))
    assert_same_weights(module, fitted())


def test_at_every_step_without_metrics(tmp_path):
    callback = PlasticityCallback(
        ShrinkAndPerturb(strength=1e-3, optimizer_state="keep"), EveryNSteps(1), log=Log(weights=False)
    )
    fitted(callback, folder=tmp_path)
    assert callback.num_events == 23  # between 24 steps
    tags = EventAccumulator(str(tmp_path)).Reload().Tags()["scalars"]
    assert {tag for tag in tags if "shrink" in tag} == {"shrink_and_perturb/event"}


def test_only_what_moves_is_measured(tmp_path):
    callback = Snapshots(ShrinkAndPerturb(where=Parameters(include=[r"net\.0"])))
    fitted(callback, folder=tmp_path)
    log = EventAccumulator(str(tmp_path)).Reload()
    before, after, _ = callback.seen[0]
    old, new = before["net.0.weight"], after["net.0.weight"]
    expected = ((old - new).square().sum() / old.square().sum()).item()
    assert log.Scalars("shrink_and_perturb/sfe_normalized")[0].value == pytest.approx(expected, rel=1e-4)
    fitted(
        PlasticityCallback(ShrinkAndPerturb(where=Parameters(include=["bias"])))
    )  # nothing to measure: no warning of no change
