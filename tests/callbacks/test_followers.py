"""Early stopping, checkpoints, schedules and averages of weights start again at an event."""

import pytest
import torch
from lightning.pytorch import callbacks
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, StochasticWeightAveraging
from small_training import GrowingData, PlainModule, dataset, fitted, snapshots_of
from torch.utils.data import DataLoader

from lightning_fire import (
    FIRE,
    FIRECallback,
    FullReset,
    PlasticityCallback,
    PlasticityInjection,
    ReDo,
    Weights,
)
from lightning_fire.functional import dfi_normalized
from lightning_fire.when import AtFraction, EveryNEpochs

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


def test_a_metric_to_maximize_is_forgotten_too():
    stopping = EarlyStopping("loss", mode="max", patience=3)
    module = fitted(FIRECallback(), stopping, module=Logs())
    assert (module.trainer.current_epoch, stopping.best_score) == (6, LOSSES[4])


@pytest.mark.parametrize("mode", ["min", "max"])
def test_the_best_checkpoint_is_of_the_last_data(tmp_path, mode):
    best = ModelCheckpoint(tmp_path, "{epoch}", monitor="loss", mode=mode, save_on_train_epoch_end=True)
    fitted(FIRECallback(), best, module=Logs())
    assert best.best_model_path == str(tmp_path / ("epoch=5.ckpt" if mode == "min" else "epoch=4.ckpt"))
    assert best.best_model_score == (LOSSES[5] if mode == "min" else LOSSES[4])
    assert len(list(tmp_path.glob("*.ckpt"))) == 3  # the best of each data


def test_the_best_checkpoint_of_older_data_stays_until_there_is_a_better_one(tmp_path):
    """The new data of the last epoch is not validated: `test` loads the best checkpoint of the data before."""

    class Tested(PlainModule):
        def validation_step(self, batch, batch_idx):
            self.log("loss", LOSSES[self.current_epoch])

        def test_step(self, batch, batch_idx):
            self.weight = self.net[3].weight.clone()

    class Data(GrowingData):
        def val_dataloader(self):
            return DataLoader(dataset(6), batch_size=6)

    best, data = ModelCheckpoint(tmp_path, "{epoch}", monitor="loss"), Data((4, 1))
    options = {"check_val_every_n_epoch": 2, "num_sanity_val_steps": 0, "max_epochs": 5}
    module = fitted(FIRECallback(), best, module=Tested(), data=data, **options)
    assert best.best_model_path == str(tmp_path / "epoch=1.ckpt")
    module.trainer.test(module, DataLoader(dataset(6), batch_size=6), ckpt_path="best", verbose=False)
    kept = torch.load(tmp_path / "epoch=1.ckpt", weights_only=True)["state_dict"]["net.3.weight"]
    assert torch.equal(module.weight, kept)


def test_a_schedule_on_a_plateau_forgets_its_best_value(caplog):
    """The loss of the new network is higher: without it, each epoch of the last data lowers the rate."""

    class Plateau(Logs):
        def configure_optimizers(self):
            optimizer = super().configure_optimizers()
            schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "loss"}}

    fits = [fitted(*callbacks, module=Plateau()).trainer for callbacks in ([], [FIRECallback()])]
    assert [fit.optimizers[0].param_groups[0]["lr"] for fit in fits] == [pytest.approx(1e-6), 1e-2]
    assert "reset: ReduceLROnPlateau's best value" in caplog.text


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
        def act(self, trainer, pl_module, clock):
            average, own = averaging._average_model.module.net[5], pl_module.net[5]
            before = average(x)
            values = super().act(trainer, pl_module, clock)
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
    assert (method.num_events, method.clock.last_event) == (events, 2 * epoch)
