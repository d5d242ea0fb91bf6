"""Methods that run the module on upcoming batches, sampled from a replay buffer."""

import pytest
import reference
import torch
from environments import Corridor, Slope
from lightning.pytorch import Callback
from replay_training import quiet_trainer, small_data, small_dqn, small_sac
from small_training import snapshots_of
from torch.func import functional_call

from lightning_fire import (
    DASH,
    AtFraction,
    EveryNEpochs,
    FIRECallback,
    Log,
    PlasticityCallback,
    PlasticityMonitor,
    ReDo,
    SelfNormalizedReset,
    Weights,
)
from lightning_fire.functional import srank

AT_HALF = AtFraction(0.5)
OF = {"dqn": (small_dqn, Corridor, Weights("cnn")), "sac": (small_sac, Slope, Weights("sac", vectors=True))}


def exact_lambda_max(module, batch) -> float:
    """The largest eigenvalue of the whole Hessian of `loss_on`, in float64."""
    names = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    state = {name: value.detach().double() for name, value in module.state_dict().items()}
    precise = batch.transitions.each(lambda value: value.double() if value.is_floating_point() else value)
    batch = batch._replace(transitions=precise)

    class Loss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.module = module

        def forward(self):
            return type(module).__base__.loss_on(self.module, batch)

    def loss(parts):
        values = state | dict(zip(names, parts, strict=True))
        return functional_call(Loss(), {f"module.{name}": value for name, value in values.items()})

    return reference.largest_eigenvalue(loss, [state[name] for name in names])


@pytest.mark.parametrize("kind", ["dqn", "sac"])
def test_lambda_max_around_an_event_is_that_of_the_loss_on_stored_transitions(tmp_path, kind):
    make, environment, where = OF[kind]
    batches, states, callback = [], [], snapshots_of(FIRECallback)(AT_HALF, where=where)
    module = make()

    class Watched(type(module)):
        def loss_on(self, batch):
            batches.append(batch)
            states.append({name: value.detach().float().clone() for name, value in self.state_dict().items()})
            return super().loss_on(batch)

    module.__class__ = Watched
    quiet_trainer(tmp_path, 2, callbacks=[callback]).fit(module, small_data(environment))
    assert len(batches) == 2 and len(callback.seen) == 1
    first, second = batches
    assert all(torch.equal(a, b) for a, b in zip(first.transitions[:5], second.transitions[:5], strict=True))
    assert first.transitions.rewards.shape == (1, 8)
    assert not any(torch.equal(states[0][name], states[1][name]) for name in states[0] if name.endswith("0.weight"))
    for moment, state, batch in zip(("before", "after"), states, batches, strict=True):
        module.load_state_dict(state)
        expected = exact_lambda_max(module, batch)
        assert callback.seen[0][2][f"fire/lambda_max_{moment}"] == pytest.approx(expected, rel=0.05), moment


@pytest.mark.parametrize(("kind", "when"), [("dqn", EveryNEpochs(1)), ("sac", AT_HALF)])
def test_training_is_the_same_with_and_without_measurements(tmp_path, kind, when):
    make, environment, where = OF[kind]
    results = []
    for curvature in (True, False):
        torch.manual_seed(0)
        module, data = make(), small_data(environment)
        quiet_trainer(tmp_path, 3, callbacks=[FIRECallback(when, where=where, log=Log(curvature=curvature))]).fit(
            module, data
        )
        results.append((module.state_dict(), data.state_dict()["rounds"]))
    (measured, data), (plain, other) = results
    assert all(torch.equal(measured[name], plain[name]) for name in plain)
    assert data["number"] == other["number"] == 120
    assert data["collector"]["steps"] == other["collector"]["steps"] == 130


def test_the_initial_steps_are_done_when_training_starts(tmp_path):
    seen = []

    class Looking(Callback):
        def on_train_start(self, trainer, pl_module):
            seen.append(trainer.datamodule.environment_steps)

    module = small_sac()
    quiet_trainer(tmp_path, 1, callbacks=[Looking()]).fit(module, small_data(Slope))
    assert seen == [10]
    assert module.normalizer.count == 50


@pytest.mark.filterwarnings("ignore:Events use 1 batch instead of")
@pytest.mark.parametrize(
    ("kind", "method"), [("dqn", (DASH(), AT_HALF)), ("sac", (ReDo(0.5), EveryNEpochs(1)))], ids=["dash", "redo"]
)
def test_methods_that_use_data_work_without_further_arguments(tmp_path, kind, method):
    make, environment, _ = OF[kind]
    data, module, callback = small_data(environment), make(), snapshots_of(PlasticityCallback)(*method)
    names = [name for name, _ in module.named_parameters()]
    quiet_trainer(tmp_path, 3, callbacks=[callback]).fit(module, data)
    assert any(not torch.equal(before[name], after[name]) for before, after, _ in callback.seen for name in names)
    assert data.environment_steps == 130


def watched_dqn(seen: list, **options):
    """A DQN that notes the hidden activations of the trained network whenever a callback computes its loss."""
    module = small_dqn(**options)

    class Watched(type(module)):
        def loss_on(self, batch):
            layer = self.net[0]
            seen.append((batch.transitions.observations.flatten(0, 1) @ layer.weight.data.T + layer.bias.data).relu())
            return super().loss_on(batch)

    module.__class__ = Watched
    return module


@pytest.mark.parametrize("double", [False, True])
def test_units_of_a_dqn_are_scored_on_the_pass_that_has_gradients(tmp_path, double):
    """Not on those that evaluate the next observations: two of the trained network, if `double`."""
    seen, callback = [], snapshots_of(PlasticityCallback)(ReDo(threshold=0.7))
    torch.manual_seed(0)
    module = watched_dqn(seen, double=double)
    quiet_trainer(tmp_path, 3, callbacks=[callback]).fit(module, small_data(Corridor))
    scored = seen[2::2]  # it looks for the units when training starts, and again before it scores them
    expected = [reference.dormant(activations, 0.7) for activations in scored]
    assert [values["redo/units"] for *_, values in callback.seen] == [len(units) for units in expected]
    assert len(expected) == 2 and all(expected)


@pytest.mark.parametrize("double", [False, True])
def test_the_monitor_evaluates_a_dqn_on_the_pass_that_has_gradients(tmp_path, double):
    seen = []
    torch.manual_seed(0)
    monitor = PlasticityMonitor(data_every_n_steps=1, dormancy_threshold=0.7)
    fit = quiet_trainer(tmp_path, 2, callbacks=[monitor])
    fit.fit(watched_dqn(seen, double=double), small_data(Corridor))
    dormant = reference.dormant(seen[-1], 0.7)
    assert fit.callback_metrics["plasticity/dormant_fraction"] == pytest.approx(len(dormant) / 16) != 0
    assert fit.callback_metrics["plasticity/srank"] == srank(seen[-1])


def test_a_step_of_a_double_dqn_counts_each_sample_once(tmp_path):
    callback, module = PlasticityCallback(SelfNormalizedReset(max_silence=10**6)), small_dqn(double=True)
    with torch.no_grad():
        module.net[0].bias[3] = -1e3  # never fires
    quiet_trainer(tmp_path, 1, callbacks=[callback]).fit(module, small_data(Corridor))
    assert callback._state["records"]["net.0"]["age"][3] == 40 * 8
