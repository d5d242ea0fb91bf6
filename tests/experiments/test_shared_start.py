"""A training in two parts, as `compare` shares the first, equals one whole training bit for bit."""

import pytest
import torch
from small_training import GrowingData, PlainModule, assert_same_weights, fitted

from lightning_fire import FIRECallback, OptimizerReset
from lightning_fire.experiments.shared_start import GoOnFromStart, SaveStart


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
    "kind",
    [PlainModule, ChangesAtTheEndOfAnEpoch, WithSchedule, WithPlateau],
    ids=lambda kind: kind.__name__,
)
@pytest.mark.parametrize("options", [{}, {"min_epochs": 6}], ids=str)
def test_two_parts_are_one_training(tmp_path, kind, options):
    def built():
        torch.manual_seed(0)
        return kind()

    whole = fitted(OptimizerReset(), FIRECallback(), data=Data(), module=built(), **options)
    path = str(tmp_path / "start.ckpt")
    start = fitted(OptimizerReset(), SaveStart(path), data=Data(), module=built(), **options)
    assert start.trainer.current_epoch == 2
    module = built()
    goes_on = [OptimizerReset(), FIRECallback(), GoOnFromStart(path)]
    fitted(*goes_on, data=Data(), module=module, seed=99, ckpt_path=path, **options)
    assert_same_weights(module, whole)
    assert not torch.equal(whole.net[0].weight, start.net[0].weight)


def test_random_numbers_go_on_and_do_not_begin_again(tmp_path):
    path = str(tmp_path / "start.ckpt")
    start = fitted(SaveStart(path), data=Data(), module=Draws())
    goes_on = [fitted(GoOnFromStart(path), data=Data(), module=Draws(), seed=s, ckpt_path=path) for s in (0, 99)]
    assert goes_on[0].drawn == goes_on[1].drawn
    assert not set(goes_on[0].drawn) & set(start.drawn)


def test_data_that_does_not_say_where_its_chunks_are():
    with pytest.raises(Exception, match=r"GrowingData has no chunk_at\(epoch\)"):
        fitted(SaveStart("never.ckpt"))
