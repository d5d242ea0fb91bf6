"""Observers and followers of a user: a few lines each."""

import pytest
import torch
from small_training import PlainData, PlainModule, fitted, snapshots_of, state_of
from torch.utils.checkpoint import checkpoint

from lightning_fire import FIRE, AtEpochs, FIRECallback, Log, OptimizerReset, PlasticityCallback
from lightning_fire.callbacks import DEFAULT_FOLLOWERS

Watched = snapshots_of(PlasticityCallback)
ONCE = {"data": PlainData(), "max_epochs": 2}


def norms(trainer, batch, change):
    weight = trainer.lightning_module.net[3].weight.detach()
    before = weight.norm().item()
    return lambda: {"norm_before": before, "norm_after": weight.norm().item()}


class Planned:
    """Counts the planned values and the samples of the batch; measures nothing after."""

    def __call__(self, trainer, batch, change):
        values = {"planned": float(len(change.values)), "samples": float(len(batch[0]))}
        return lambda: values


def test_observers_measure_before_and_after_and_are_logged_under_the_name_of_the_callback():
    callback = Watched(FIRE(), AtEpochs([1]), log=Log("own", curvature=False), observers=[norms, Planned()])
    module = fitted(callback, **ONCE)
    ((before, after, values),) = callback.seen
    assert values["own/norm_before"] == pytest.approx(float(before["net.3.weight"].norm()))
    assert values["own/norm_after"] == pytest.approx(float(after["net.3.weight"].norm()))
    assert (values["own/planned"], values["own/samples"]) == (3, 6)
    assert module.trainer.callback_metrics["own/samples"] == 6


def test_an_observer_that_raises_ends_the_event_before_anything_is_written():
    def fails(trainer, batch, change):
        states.append(state_of(trainer.lightning_module))
        raise OSError("no sensor")

    states, callback, module = [], PlasticityCallback(FIRE(), AtEpochs([1]), observers=[fails]), PlainModule()
    with pytest.raises(OSError, match="no sensor"):
        fitted(callback, module=module, **ONCE)
    assert all(torch.equal(value, module.state_dict()[name]) for name, value in states[0].items())
    assert callback.num_events == 0


def counted(trainer, new_data):
    trainer.lightning_module.followed = [*getattr(trainer.lightning_module, "followed", []), new_data]
    return ["buffer emptied"]


class Averages:
    """Keeps a copy of the new head."""

    def __call__(self, trainer, new_data):
        self.head = trainer.lightning_module.net[5].weight.detach().clone()
        return ()


def test_followers_come_after_the_change_and_their_words_are_in_the_line_of_the_event(caplog):
    averages = Averages()
    callback = Watched(FIRE(), log=Log(curvature=False), followers=[*DEFAULT_FOLLOWERS, counted, averages])
    module = fitted(callback)
    assert module.followed == [True, True]
    assert torch.equal(averages.head, callback.seen[-1][1]["net.5.weight"])
    lines = [text for text in caplog.messages if " acted at " in text]
    assert len(lines) == 2 and all(text.endswith(", buffer emptied)") for text in lines)


def test_nothing_follows_an_event_that_changes_no_weight():
    assert not hasattr(fitted(PlasticityCallback(OptimizerReset(), followers=[counted])), "followed")


def test_the_old_weights_are_back_after_a_follower_that_raises():
    def fails(trainer, new_data):
        raise OSError("no disk")

    def keeps(trainer, batch, change):
        states.append(state_of(trainer.lightning_module))
        return dict

    states, module = [], PlainModule()
    callback = PlasticityCallback(FIRE(), AtEpochs([1]), observers=[keeps], followers=[fails])
    with pytest.raises(OSError, match="no disk"):
        fitted(callback, module=module, **ONCE)
    assert all(torch.equal(value, module.state_dict()[name]) for name, value in states[0].items())
    assert callback.num_events == 0 and callback.clock.last_event is None


@pytest.mark.filterwarnings("ignore:lambda_max_before is not logged. the loss has no gradient")
@pytest.mark.parametrize("use_reentrant", [True, False])
def test_lambda_max_of_checkpointed_layers_is_right_or_not_logged(use_reentrant, caplog):
    """A reentrant checkpoint hides gradients, which are not 0."""

    class Plain(PlainModule):
        def __init__(self):
            super().__init__()
            self.net[1] = torch.nn.Identity()  # a checkpoint would update statistics twice

        def training_step(self, batch, batch_idx):
            return torch.nn.functional.cross_entropy(self.outputs(batch[0].clone().requires_grad_()), batch[1])

        def outputs(self, x):
            return self.net(x)

    class Checkpointed(Plain):
        def outputs(self, x):
            return checkpoint(self.net, x, use_reentrant=use_reentrant)

    found = []
    for kind in (Plain, Checkpointed):
        torch.manual_seed(0)
        callback = snapshots_of(FIRECallback)(AtEpochs([1]))
        fitted(callback, module=kind(), **ONCE)
        keys = [f"fire/lambda_max_{time}" for time in ("before", "after") if callback.seen]
        found.append([callback.seen[0][2].get(key) for key in keys])
    plain, checkpointed = found
    assert checkpointed == ([None, None] if use_reentrant else pytest.approx(plain, rel=1e-3))
    assert ("use_reentrant=False" in caplog.text) == use_reentrant
