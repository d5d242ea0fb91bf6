"""Early stopping, checkpoints and weight averages are reset at an event."""

import copy

import pytest
import torch
from lightning.pytorch import callbacks
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, ModelPruning, StochasticWeightAveraging
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from small_training import GrowingData, PlainData, PlainModule, fitted, snapshots_of

from lightning_fire import (
    DASH,
    FIRE,
    FIRECallback,
    FullReset,
    PlasticityCallback,
    PlasticityInjection,
    ReDo,
    ShrinkAndPerturb,
    Weights,
)
from lightning_fire.callbacks.base import event
from lightning_fire.callbacks.base.neighbours import reset_other_callbacks
from lightning_fire.functional import dfi_normalized
from lightning_fire.when import AtEpochs, AtFraction, EveryNEpochs

LOSSES = (0.2, 0.1, 0.9, 0.8, 0.7, 0.6)  # of the epochs; new data comes with the third and the fifth
needs_ema = pytest.mark.skipif(not hasattr(callbacks, "EMAWeightAveraging"), reason="came with Lightning 2.6")


class Logs(PlainModule):
    """Logs a loss that rises where new data comes."""

    def on_train_epoch_end(self):
        self.log("loss", LOSSES[self.current_epoch])


@pytest.mark.parametrize(("method", "epochs"), [(FIRE, 6), (FullReset, 6), (ReDo, 5)])
def test_early_stopping_restarts_its_patience(method, epochs):
    """The loss is lowest in the second epoch; ReDo replaces units and keeps the best score."""
    stopping = EarlyStopping("loss", patience=3)
    module = fitted(PlasticityCallback(method()), stopping, module=Logs())
    assert module.trainer.current_epoch == epochs
    assert stopping.best_score == (LOSSES[1] if method is ReDo else LOSSES[5])


@pytest.mark.parametrize("mode", ["min", "max"])
def test_the_best_checkpoint_is_of_the_last_data(tmp_path, mode):
    best = ModelCheckpoint(tmp_path, "{epoch}", monitor="loss", mode=mode, save_on_train_epoch_end=True)
    fitted(FIRECallback(), best, module=Logs())
    assert best.best_model_path == str(tmp_path / ("epoch=5.ckpt" if mode == "min" else "epoch=4.ckpt"))
    assert best.best_model_score == (LOSSES[5] if mode == "min" else LOSSES[4])
    assert len(list(tmp_path.glob("*.ckpt"))) == 3  # the best of each data


def test_where_the_data_is_the_same_the_best_checkpoint_stays(tmp_path):
    best = ModelCheckpoint(tmp_path, "{epoch}", monitor="loss", save_on_train_epoch_end=True)
    fitted(FIRECallback(EveryNEpochs(2)), best, module=Logs(), data=GrowingData((6,)))
    assert best.best_model_path == str(tmp_path / "epoch=1.ckpt")


@needs_ema
def test_a_moving_average_restarts():
    method = snapshots_of(FIRECallback)()
    averaging = callbacks.EMAWeightAveraging(decay=0.99)
    module = fitted(method, averaging, data=GrowingData((2, 2)), max_epochs=3)
    alone = fitted(FIRECallback(), data=GrowingData((2, 2)), max_epochs=3)
    (_, after, _) = method.seen[-1]
    weight, moved = module.net[3].weight, after["net.3.weight"]
    assert dfi_normalized(weight) < 0.3
    assert torch.dist(weight, moved) < torch.dist(alone.net[3].weight, moved)  # an average from there on
    assert averaging._average_model.n_averaged == 4  # steps since


class SavesNoFrozenPart(PlainModule):
    """As on Lightning's page on `strict_loading`."""

    def __init__(self):
        super().__init__()
        self.strict_loading = False
        self.net[:2].requires_grad_(False)

    def state_dict(self, *args, **kwargs):
        state = super().state_dict(*args, **kwargs)
        return {name: value for name, value in state.items() if not name.startswith(("net.0", "net.1"))}


@needs_ema
@pytest.mark.parametrize("method", [FIRE, FullReset])
def test_the_average_of_a_module_that_saves_a_part_of_its_state_restarts(method):
    averaging = callbacks.EMAWeightAveraging(decay=0.99)
    callback = snapshots_of(PlasticityCallback)(method())
    module = fitted(callback, averaging, module=SavesNoFrozenPart(), data=GrowingData((2, 2)), max_epochs=3)
    weight = callback.seen[-1][1]["net.3.weight"]
    assert torch.dist(module.net[3].weight, weight) < 0.1 * weight.norm()
    assert averaging._average_model.n_averaged == 4  # steps since


@needs_ema
def test_the_average_of_an_injected_head_restarts():
    """The frozen copies of the head came later than the average."""
    callbacks_before = PlasticityCallback(PlasticityInjection("net.5")), FIRECallback(where=Weights(include=["net.3"]))
    averaging = callbacks.EMAWeightAveraging(decay=0.99)
    module = fitted(*callbacks_before, averaging, data=GrowingData((2, 2)), max_epochs=3)
    assert len(averaging._average_model.module.net[5].frozen) == len(module.net[5].frozen) == 1


@needs_ema
@pytest.mark.parametrize("average_is", ["after", "before"])
def test_an_injection_alone_changes_the_output_of_no_average(average_is):
    """The average continues from its own old weights, also if it was copied before the head was wrapped."""
    averaging, outputs, x = callbacks.EMAWeightAveraging(decay=0.99), [], torch.randn(5, 8)

    class Watched(PlasticityCallback):
        def act(self, trainer, pl_module):
            average, own = averaging._average_model.module.net[5], pl_module.net[5]
            before = average(x)
            values = super().act(trainer, pl_module)
            outputs.append((before, average(x), own(x)))
            assert torch.equal(average.trained.weight, own.trained.weight)
            return values

    both = [Watched(PlasticityInjection("net.5")), averaging]
    fitted(*(both if average_is == "after" else both[::-1]), data=GrowingData((2, 2)), max_epochs=3)
    ((before, after, own),) = outputs
    torch.testing.assert_close(after, before)
    assert not torch.allclose(after, own)


def test_stochastic_weight_averaging_restarts():
    averaging = StochasticWeightAveraging(swa_lrs=1e-9, swa_epoch_start=1, annealing_epochs=1)
    module = fitted(FIRECallback(), averaging, data=GrowingData((4, 2)))
    assert dfi_normalized(module.net[3].weight) < 0.3


@pytest.mark.parametrize("when", [EveryNEpochs(2), AtFraction(0.5)], ids=repr)
def test_the_epoch_that_stochastic_weight_averaging_adds_is_no_time_for_an_event(when):
    """It trains no weight: an event there would replace the average for good."""
    averaging = StochasticWeightAveraging(swa_lrs=1e-2, swa_epoch_start=2, annealing_epochs=1)
    fitted(method := FIRECallback(when), averaging, data=GrowingData((6,)))
    events, epoch = (2, 4) if isinstance(when, EveryNEpochs) else (1, 3)
    assert (method.num_events, method.progress.last_event) == (events, 2 * epoch)


def test_an_event_that_fails_leaves_the_best_scores(tmp_path, monkeypatch):
    """Whatever fails after the weights are written: all of it is as before."""
    stopping, best = EarlyStopping("loss", patience=9), ModelCheckpoint(tmp_path, monitor="loss")
    kept = []

    def fails(trainer, new_data):
        kept.append((copy.deepcopy(stopping.state_dict()), copy.deepcopy(best.state_dict())))
        assert reset_other_callbacks(trainer, new_data)
        raise MemoryError

    monkeypatch.setattr(event, "reset_other_callbacks", fails)
    module = Logs()
    with pytest.raises(MemoryError):
        fitted(method := FIRECallback(), stopping, best, module=module)
    ((patience, checkpoints),) = kept
    assert method.num_events == 0
    assert stopping.state_dict() == patience and best.state_dict() == checkpoints
    assert best.best_k_models and stopping.best_score == LOSSES[1]
    assert dfi_normalized(module.net[3].weight) > 0.3


@pytest.mark.parametrize("method", [FIRE(), DASH(), ReDo(), FullReset(), ShrinkAndPerturb()], ids=lambda m: m.name)
def test_weights_that_are_pruned_from_the_first_epoch_on_are_an_error_before_training(method):
    module = PlainModule()
    with pytest.raises(MisconfigurationException, match=r"cannot act on weights that ModelPruning has pruned.*net\.0"):
        fitted(
            PlasticityCallback(method, AtEpochs([2])), ModelPruning("l1_unstructured"), module=module, data=PlainData()
        )
    assert module.global_step == 0


def test_pruning_of_other_weights_or_after_the_last_event_is_no_error(caplog):
    options = {"data": PlainData(), "max_epochs": 4}
    module, first = PlainModule(), FIRECallback(AtEpochs([2]), where=Weights(exclude=[r"net\.0"]))
    fitted(first, ModelPruning("l1_unstructured", [(module.net[0], "weight")]), module=module, **options)
    never = FIRECallback()
    fitted(never, ModelPruning("l1_unstructured"), **options)
    assert "cannot act on weights" not in caplog.text
    later = FIRECallback(AtEpochs([2]))
    fitted(later, ModelPruning("l1_unstructured", apply_pruning=lambda epoch: epoch == 3), **options)
    assert "cannot act on weights" in caplog.text
    assert [each.num_events for each in (first, never, later)] == [1, 0, 1]


@pytest.mark.parametrize(("method", "epochs"), [(FIRE, 6), (FullReset, 6), (ReDo, 5)])
def test_early_stopping_restarts_its_patience_for_a_metric_to_maximize(method, epochs):
    class Accurate(PlainModule):
        def on_train_epoch_end(self):
            self.log("accuracy", 1 - LOSSES[self.current_epoch])

    stopping = EarlyStopping("accuracy", mode="max", patience=3)
    module = fitted(PlasticityCallback(method()), stopping, module=Accurate())
    assert module.trainer.current_epoch == epochs
    assert stopping.best_score == pytest.approx(1 - (LOSSES[1] if method is ReDo else LOSSES[5]))


def test_pruned_weights_of_a_teacher_are_no_error():
    class Distilled(PlainModule):
        def __init__(self):
            super().__init__()
            self.teacher = torch.nn.Linear(6, 3)

        def configure_optimizers(self):
            return torch.optim.Adam(self.net.parameters(), lr=1e-2)

    module, method = Distilled(), FIRECallback(AtEpochs([1]))
    pruning = ModelPruning("l1_unstructured", [(module.teacher, "weight")])
    fitted(method, pruning, module=module, data=PlainData(), max_epochs=2)
    assert method.num_events == 1
