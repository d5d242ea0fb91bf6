"""Training progress over interruptions: with a user's own data, no batch is skipped or trained twice."""

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from small_training import GrowingData, PlainModule, assert_same_weights, dataset, fitted
from torch.utils.data import DataLoader

from lightning_fire import AtNewData, EveryNSteps, FIRECallback, Log, PlasticityMonitor

CALLBACKS = {
    "event": lambda: FIRECallback(AtNewData(), log=Log(curvature=False)),
    "steps": lambda: FIRECallback(EveryNSteps(5), log=Log(curvature=False)),
    "monitor": lambda: PlasticityMonitor(),
}


class Killed(Exception):
    pass


class KilledAfter(ModelCheckpoint):
    """Writes a checkpoint after each step, and ends the process after one of them."""

    def __init__(self, folder, step):
        super().__init__(folder, "{step}", save_top_k=-1, every_n_train_steps=1)
        self.last_step = step

    def on_train_batch_end(self, trainer, *args):
        super().on_train_batch_end(trainer, *args)
        if trainer.global_step == self.last_step:
            raise Killed


class Hooks(PlainModule):
    """Counts the batches of each epoch and notes its beginning."""

    def __init__(self):
        super().__init__()
        self.begun, self.batches = [], []

    def on_train_epoch_start(self):
        self.begun.append(self.current_epoch)

    def training_step(self, batch, batch_idx):
        self.batches.append((self.current_epoch, batch_idx))
        return super().training_step(batch, batch_idx)


class Validating(Hooks):
    def validation_step(self, batch, batch_idx):
        pass


class Validated(GrowingData):
    def val_dataloader(self):
        return DataLoader(dataset(12), batch_size=6)


def trained(kind, *callbacks, validate=False, **options):
    torch.manual_seed(0)
    module, data = (Validating(), Validated()) if validate else (Hooks(), GrowingData())
    try:
        fitted(CALLBACKS[kind](), *callbacks, data=data, module=module, num_sanity_val_steps=0, **options)
    except Killed:
        assert callbacks
    return module


LAST_BATCHES = [2, 4, 8, 12, 18]


@pytest.mark.filterwarnings("ignore:The dirpath has changed")
@pytest.mark.parametrize(("kind", "validate"), [("event", False), ("steps", True), ("monitor", False)])
@pytest.mark.parametrize("steps", [LAST_BATCHES, [2, 3, 4, 7, 12, 14, 18, 20]], ids=["last batches", "within, too"])
def test_a_run_that_is_killed_again_and_again_trains_each_batch_once(tmp_path, steps, kind, validate):
    """Lightning alone skips batches of an epoch that is longer than the one before, and then repeats others.

    An epoch has 2, 2, 4, 4, 6 and 6 batches.
    """
    batches, path = [], None
    for step in steps:
        part = trained(kind, KilledAfter(tmp_path / str(step), step), validate=validate, ckpt_path=path)
        batches, path = batches + part.batches, tmp_path / str(step) / f"step={step}.ckpt"
    whole, resumed = trained(kind, validate=validate), trained(kind, validate=validate, ckpt_path=path)
    assert batches + resumed.batches == whole.batches
    if steps == LAST_BATCHES:  # within an epoch, a plain DataLoader begins again
        assert_same_weights(resumed, whole)


@pytest.mark.parametrize("epochs", [1, 3])
def test_a_resume_from_the_last_batch_of_an_epoch_begins_the_next_one(tmp_path, epochs):
    step = LAST_BATCHES[epochs - 1]
    trained("event", KilledAfter(tmp_path, step))
    assert trained("event", ckpt_path=tmp_path / f"step={step}.ckpt").begun == list(range(epochs, 6))


class WithSchedule(Hooks):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)]


@pytest.mark.parametrize("kind", CALLBACKS)
@pytest.mark.parametrize("end", [{"max_epochs": 6}, {"max_epochs": -1, "max_steps": 24}], ids=str)
def test_a_resume_from_the_end_of_an_epoch_is_the_whole_run(tmp_path, end, kind):
    """With `max_steps` alone, Lightning trains on one more batch of the finished epoch."""

    def run(*callbacks, **options):
        torch.manual_seed(0)
        return fitted(CALLBACKS[kind](), *callbacks, data=GrowingData(), module=WithSchedule(), **end, **options)

    whole = run(ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1, save_on_train_epoch_end=True))
    for epoch in (0, 3):
        resumed = run(ckpt_path=tmp_path / f"epoch={epoch}.ckpt")
        assert resumed.batches == [batch for batch in whole.batches if batch[0] > epoch]
        assert resumed.begun == [begun for begun in whole.begun if begun > epoch]
        assert_same_weights(resumed, whole)


class FailsAtEpoch4(Callback):
    """Writes a checkpoint because of it."""

    def __init__(self, path):
        self.path = path

    def on_train_epoch_start(self, trainer, pl_module):
        if trainer.current_epoch == 4:
            trainer.save_checkpoint(self.path)
            raise Killed


def test_a_resume_of_an_epoch_that_failed_at_its_start_trains_all_of_it(tmp_path):
    trained("event", FailsAtEpoch4(tmp_path / "failed.ckpt"))
    whole, resumed = trained("event"), trained("event", ckpt_path=tmp_path / "failed.ckpt")
    assert resumed.batches == [batch for batch in whole.batches if batch[0] >= 4]
    assert_same_weights(resumed, whole)
