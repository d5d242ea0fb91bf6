"""A training in two parts, as `compare` shares the first, equals one whole training bit for bit."""

import pytest
import torch
from lightning.pytorch import Callback
from small_training import GrowingData, PlainModule, assert_same_weights, fitted

from lightning_fire import FIRECallback, OptimizerReset, PlasticityCallback
from lightning_fire.experiments.training import SAVE_SECONDS, ReportProgress, RunProgress, read_progress

SAVING = {"enable_checkpointing": True}
FIRST_CHUNK = {"start.ckpt": None}


class Data(GrowingData):
    def chunk_at(self, epoch):
        return self.chunks[min(epoch, len(self.chunks) - 1)]


class Draws(PlainModule):
    """Draws from the global random state."""

    def training_step(self, batch, batch_idx):
        self.drawn = [*getattr(self, "drawn", []), torch.rand(()).item()]
        return super().training_step(batch, batch_idx)


class ChangesAtTheEndOfAnEpoch(PlainModule):
    def on_train_epoch_end(self):
        with torch.no_grad():
            self.net[0].weight.mul_(0.9)


class WithSchedule(PlainModule):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)]


class WithPlateau(PlainModule):
    """Halves the learning rate at each epoch but the first."""

    def training_step(self, batch, batch_idx):
        self.log("epoch", float(self.current_epoch), on_step=False, on_epoch=True)
        return super().training_step(batch, batch_idx)

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "epoch"}}


@pytest.mark.parametrize(
    "kind", [PlainModule, ChangesAtTheEndOfAnEpoch, WithSchedule, WithPlateau], ids=lambda kind: kind.__name__
)
@pytest.mark.parametrize("options", [{}, {"min_epochs": 6}], ids=str)
def test_two_parts_are_one_training(tmp_path, kind, options):
    def built():
        torch.manual_seed(0)
        return kind()

    whole = fitted(PlasticityCallback(OptimizerReset()), FIRECallback(), data=Data(), module=built(), **options)
    path, report = str(tmp_path / "start.ckpt"), tmp_path / "progress.json"
    first = {**options, **SAVING, "default_root_dir": tmp_path}
    start = fitted(
        PlasticityCallback(OptimizerReset()),
        ReportProgress(report, saves=FIRST_CHUNK),
        data=Data(),
        module=built(),
        **first,
    )
    assert start.trainer.current_epoch == 2
    module = built()
    callbacks = [PlasticityCallback(OptimizerReset()), FIRECallback(), ReportProgress(report)]
    fitted(*callbacks, data=Data(), module=module, seed=99, ckpt_path=path, **options, **SAVING)
    assert_same_weights(module, whole)
    assert not torch.equal(whole.net[0].weight, start.net[0].weight)


def test_random_numbers_continue_and_do_not_restart(tmp_path):
    path, report = str(tmp_path / "start.ckpt"), tmp_path / "progress.json"
    saving = {**SAVING, "default_root_dir": tmp_path}
    start = fitted(ReportProgress(report, saves=FIRST_CHUNK), data=Data(), module=Draws(), **saving)
    options = {"data": Data(), "ckpt_path": path, **SAVING}
    resumed = [fitted(ReportProgress(report), module=Draws(), seed=seed, **options) for seed in (0, 99)]
    assert resumed[0].drawn == resumed[1].drawn
    whole = fitted(ReportProgress(report), data=Data(), module=Draws(), **SAVING)
    assert whole.drawn == start.drawn + resumed[0].drawn
    assert not set(resumed[0].drawn) & set(start.drawn)


def test_data_that_does_not_say_where_its_chunks_are():
    with pytest.raises(Exception, match=r"GrowingData has no chunk_at\(epoch\)"):
        fitted(ReportProgress("progress.json", saves=FIRST_CHUNK), **SAVING)


class Stops(Callback):
    """Raises in the middle of an epoch."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.current_epoch == 4 and batch_idx == 1:
            raise RuntimeError("the machine goes away")


@pytest.mark.parametrize("reload", [0, 1])
@pytest.mark.parametrize("kind", [PlainModule, WithSchedule, Draws], ids=lambda kind: kind.__name__)
def test_a_training_resumed_from_its_last_checkpoint_is_the_undisturbed_one(tmp_path, kind, reload, monkeypatch):
    options = {"reload_dataloaders_every_n_epochs": reload, **SAVING}
    chunks = (2, 2, 2) if reload else (6,)

    def built():
        torch.manual_seed(0)
        return kind()

    def callbacks():
        methods = [PlasticityCallback(OptimizerReset()), FIRECallback()] if reload else []
        return [*methods, ReportProgress(tmp_path / "progress.json")]

    monkeypatch.setenv(SAVE_SECONDS, "1e9")
    whole = fitted(*callbacks(), data=Data(chunks), module=built(), **options)
    assert not (tmp_path / "last.ckpt").exists()
    monkeypatch.setenv(SAVE_SECONDS, "0")
    with pytest.raises(RuntimeError):
        fitted(*callbacks(), Stops(), data=Data(chunks), module=built(), **options)
    assert read_progress(tmp_path)[:2] == (4, 6)
    module = built()
    fitted(*callbacks(), data=Data(chunks), module=module, seed=99, ckpt_path=str(tmp_path / "last.ckpt"), **options)
    assert_same_weights(module, whole)
    if kind is Draws:  # as dropout does
        assert module.drawn == whole.drawn[-len(module.drawn) :]
    assert read_progress(tmp_path) == RunProgress(6, 6, len(chunks), len(chunks), ended=True, began=4)
