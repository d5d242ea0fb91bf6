"""`WhenMetric` in real fits: it reads the logged metric, acts on it, and continues after a resume."""

import copy

import pytest
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from small_training import PlainData, PlainModule, assert_same_weights, dataset, fitted, snapshots_of
from torch.utils.data import DataLoader

from lightning_fire import AtEpochs, FIRECallback, Log, WhenMetric

Spy = snapshots_of(FIRECallback)
METRIC = {0: 0.1, 1: 0.6, 2: 0.7, 3: 0.3, 4: 0.3, 5: 0.9, 6: 0.9}  # at the end of an epoch


class Logging(PlainModule):
    """Logs `METRIC` in one of several ways."""

    def __init__(self, way: str = "module"):
        super().__init__()
        self.way = way

    def training_step(self, batch, batch_idx):
        if self.way == "step":
            self.log("measure", METRIC[self.current_epoch], on_step=False, on_epoch=True)
        return super().training_step(batch, batch_idx)

    def on_train_epoch_end(self):
        if self.way == "module":
            self.log("measure", METRIC[self.current_epoch])


class Validating(Logging):
    def validation_step(self, batch, batch_idx):
        if self.way == "validation":
            self.log("measure", METRIC[self.current_epoch])


class Validated(PlainData):
    def val_dataloader(self):
        return DataLoader(dataset(12, seed=1), batch_size=6)


class LogsInACallback(Callback):
    def on_train_epoch_end(self, trainer, pl_module):
        pl_module.log("measure", METRIC[trainer.current_epoch])


def spy(**options) -> FIRECallback:
    return Spy(WhenMetric("measure", **options), log=Log(curvature=False))


@pytest.mark.parametrize("way", ["module", "step", "callback before", "callback after"])
def test_it_acts_at_the_start_of_the_epoch_after_the_metric_has_passed(way):
    method = spy(above=0.5)
    callbacks = {"callback before": [LogsInACallback(), method], "callback after": [method, LogsInACallback()]}
    fitted(*callbacks.get(way, [method]), data=PlainData(), module=Logging(way), max_epochs=7)
    assert method.epochs == [2, 6]


def test_rearm_and_other_schedules_beside_it():
    method = spy(above=0.5, rearm=0.2)
    fitted(method, data=PlainData(), module=Logging(), max_epochs=7)
    assert method.epochs == [2]
    method = Spy([WhenMetric("measure", above=0.5), AtEpochs([5])], log=Log(curvature=False))
    fitted(method, data=PlainData(), module=Logging(), max_epochs=7)
    assert method.epochs == [2, 5, 6]  # at 5 the metric was low


@pytest.mark.parametrize("end", ["last batch", "validation", "epoch"])
@pytest.mark.parametrize("way", ["module", "step", "validation"])
def test_a_resume_from_the_end_of_an_epoch_acts_in_the_same_epochs(tmp_path, way, end):
    """From its last batch, Lightning alone would skip the validation and the end of the epoch."""
    at = {"every_n_train_steps": 4} if end == "last batch" else {"save_on_train_epoch_end": end == "epoch"}
    kind, data = (Validating, Validated()) if "validation" in (way, end) else (Logging, PlainData())
    options = {"data": data, "max_epochs": 7, "num_sanity_val_steps": 0}
    save, method = ModelCheckpoint(tmp_path, filename="{step}", save_top_k=-1, **at), spy(above=0.5)
    whole = fitted(method, save, module=kind(way), **options)
    assert method.epochs == [2, 6]
    for epochs in (1, 2, 3, 6):
        method, path = spy(above=0.5), tmp_path / f"step={4 * epochs}.ckpt"
        resumed = fitted(method, module=kind(way), ckpt_path=path, **options)
        assert method.epochs == [e for e in (2, 6) if e >= epochs], epochs
        assert_same_weights(resumed, whole)
        assert resumed.trainer.fit_loop.epoch_loop._batches_that_stepped == 28


class Copies(Callback):
    """Copies a callback in the middle of an epoch, as a strategy may."""

    def __init__(self, callback):
        self.callback = callback

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.global_step == 8:
            self.state = copy.deepcopy(self.callback).state_dict()["time"]
            self.own = self.callback.state_dict()["time"]


def test_a_copy_made_during_a_fit_has_the_state_of_the_original():
    method = spy(above=0.5)
    copies = Copies(method)
    fitted(method, copies, data=PlainData(), module=Logging(), max_epochs=4)
    assert copies.state["readings"] and copies.state == copies.own


def test_a_metric_that_is_never_logged_is_warned_about():
    with pytest.warns(UserWarning, match=r"waits for mesure, which was not logged .* logged were measure"):
        fitted(Spy(WhenMetric("mesure", above=0.5)), data=PlainData(), module=Logging(), max_epochs=2)


def test_a_metric_that_is_nan_is_ignored(monkeypatch):
    monkeypatch.setitem(METRIC, 0, float("nan"))
    method = spy(above=0.5)
    fitted(method, data=PlainData(), module=Logging(), max_epochs=3)
    assert method.epochs == [2]


@pytest.mark.parametrize("step", [9, 10])
def test_a_checkpoint_in_the_middle_of_an_epoch_reads_nothing_early(tmp_path, step):
    class ByStep(PlainModule):
        def training_step(self, batch, batch_idx):
            low = self.current_epoch == 2 and batch_idx < 3
            self.log("measure", 0.1 if low else 0.9, on_step=True, on_epoch=False)
            return super().training_step(batch, batch_idx)

    save = ModelCheckpoint(tmp_path, filename="{step}", save_top_k=-1, every_n_train_steps=1)
    method = spy(above=0.5)
    fitted(method, save, data=PlainData(), module=ByStep(), max_epochs=5)
    assert method.epochs == [1]
    resumed = spy(above=0.5)
    fitted(resumed, data=PlainData(), module=ByStep(), max_epochs=5, ckpt_path=tmp_path / f"step={step}.ckpt")
    assert resumed.epochs == []
