"""Learning-rate schedules that restart at new data: any scheduler, on data that grows, also after a resume."""

import math

import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import BackboneFinetuning, ModelCheckpoint
from small_training import GrowingData, PlainData, PlainModule, assert_same_weights, fitted, resumed_from, trainer
from torch.optim import lr_scheduler

from lightning_fire import (
    UPGD,
    FIRECallback,
    Log,
    PlasticityMonitor,
    RestartSchedulers,
)

EPOCHS = 2  # of each chunk; 2, 4 and 6 batches an epoch


def of_one_chunk(module):
    return EPOCHS * module.trainer.estimated_stepping_batches // module.trainer.max_epochs


SCHEDULERS = {
    "one cycle": lambda optimizer, steps: lr_scheduler.OneCycleLR(optimizer, 0.1, steps),
    "cosine": lambda optimizer, steps: lr_scheduler.CosineAnnealingLR(optimizer, steps),
    "lambda": lambda optimizer, steps: lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps),
    "sequence": lambda optimizer, steps: lr_scheduler.SequentialLR(
        optimizer,
        [lr_scheduler.LinearLR(optimizer, 0.5, total_iters=1), lr_scheduler.CosineAnnealingLR(optimizer, steps - 1)],
        [1],
    ),
}


class Scheduled(PlainModule):
    """Has a schedule by optimizer steps."""

    def __init__(self, scheduler, length=of_one_chunk):
        super().__init__()
        self.scheduler, self.length = scheduler, length

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        scheduler = SCHEDULERS[self.scheduler](optimizer, self.length(self))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class Rates(Callback):
    """Keeps the learning rate of each batch."""

    def __init__(self):
        self.seen = []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.seen.append(trainer.optimizers[0].param_groups[0]["lr"])


def scheduled(*args):
    torch.manual_seed(0)
    return Scheduled(*args)


def expected(scheduler, lengths=(4, 8, 12)):
    """The rates of a new schedule for each chunk."""
    rates = []
    for steps in lengths:
        optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=0.01)
        schedule = SCHEDULERS[scheduler](optimizer, steps)
        for _ in range(steps):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
    return rates


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_each_chunk_has_a_schedule_of_its_own_length(scheduler):
    rates = Rates()
    fitted(FIRECallback(), RestartSchedulers(), rates, module=scheduled(scheduler))
    assert rates.seen == pytest.approx(expected(scheduler), rel=1e-12)


@pytest.mark.parametrize("method_first", [True, False])
def test_optimizer_state_is_kept_but_for_what_the_method_drops(method_first):
    class Look(Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            if (trainer.global_step, batch_idx) == (4, 0):
                state = trainer.optimizers[0].state
                self.steps = {name: int(state[p]["step"]) for name, p in pl_module.named_parameters() if p in state}

    look, methods = Look(), [FIRECallback(), RestartSchedulers()]
    fitted(*(methods if method_first else methods[::-1]), look, module=scheduled("cosine"))
    dropped = {"net.0.weight", "net.3.weight", "net.5.weight"}
    names = {name for name, _ in PlainModule().named_parameters()}
    assert look.steps == dict.fromkeys(names - dropped, 4)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_resumed_run_equals_an_uninterrupted_one(scheduler, tmp_path):
    save = ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1)
    whole = fitted(FIRECallback(), RestartSchedulers(), save, module=scheduled(scheduler))
    rates = Rates()
    resumed = scheduled(scheduler)
    trainer(FIRECallback(), RestartSchedulers(), rates).fit(
        resumed, datamodule=GrowingData(), **resumed_from(tmp_path / "epoch=2.ckpt")
    )
    assert rates.seen == pytest.approx(expected(scheduler)[8:], rel=1e-12)
    assert_same_weights(whole, resumed)


class Month(PlainData):
    def __init__(self, month):
        super().__init__()
        self.chunk = month


@pytest.mark.parametrize("other", [FIRECallback, PlasticityMonitor])
def test_added_in_a_later_month_it_knows_the_data_from_another_callback(other, tmp_path):
    """And restarts a schedule that has ended."""
    save = ModelCheckpoint(tmp_path, "month0", save_on_train_epoch_end=True)
    fitted(other(), save, module=scheduled("one cycle"), data=Month(0), max_epochs=EPOCHS)
    others, restart, rates = [other(), FIRECallback(log=Log(name="new"))], RestartSchedulers(), Rates()
    ckpt = {"ckpt_path": tmp_path / "month0.ckpt", "max_epochs": 2 * EPOCHS}
    fitted(restart, *others, rates, module=scheduled("one cycle"), data=Month(1), **ckpt)
    assert [callback.num_events for callback in (others[1], restart)] == [1, 1]
    assert rates.seen == pytest.approx(expected("one cycle", [8]), rel=1e-12)
    same = RestartSchedulers()
    fitted(same, other(), module=scheduled("cosine"), data=Month(0), **ckpt)
    assert same.num_events == 0


def test_a_plateau_is_forgotten():
    class Plateau(PlainModule):
        def configure_optimizers(self):
            optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
            schedule = lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=math.inf)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "loss"}}

        def on_train_epoch_end(self):
            self.log("loss", 1.0)

    rates = Rates()
    fitted(FIRECallback(), RestartSchedulers(), rates, module=Plateau())
    assert rates.seen == pytest.approx(
        [rate for batches in (2, 4, 6) for rate in (0.01, 0.001) for _ in range(batches)]
    )


def test_groups_added_later_keep_their_learning_rate():
    class FineTuned(PlainModule):
        def __init__(self):
            super().__init__()
            self.backbone = self.net[:3]

        def configure_optimizers(self):
            optimizer = torch.optim.Adam([p for p in self.parameters() if p.requires_grad], lr=0.01)
            return [optimizer], [lr_scheduler.ConstantLR(optimizer, 1.0)]

    class Look(Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            self.groups = [(group["lr"], len(group["params"])) for group in trainer.optimizers[0].param_groups]

    unfreeze, look = BackboneFinetuning(1, lambda epoch: 1.0, backbone_initial_ratio_lr=0.1, train_bn=False), Look()
    torch.manual_seed(0)
    fitted(unfreeze, RestartSchedulers(), look, module=FineTuned())
    # the Linear layer of the backbone stays at a tenth; its BatchNorm was left out, and is in the groups of the module
    assert look.groups == [(0.01, 6), (pytest.approx(0.001), 2)]


def test_a_larger_head_is_taken_in():
    """A module that grows its head where new data begins, before `RestartSchedulers` runs."""

    class Grows(Callback):
        def on_train_epoch_start(self, trainer, pl_module):
            if trainer.current_epoch == 2:
                old = pl_module.net[5]
                pl_module.net[5] = torch.nn.Linear(8, 4)
                with torch.no_grad():
                    pl_module.net[5].weight[:3], pl_module.net[5].bias[:3] = old.weight, old.bias
                self.start = pl_module.net[5].weight.detach().clone()

    grows = Grows()
    module = fitted(grows, RestartSchedulers(), module=scheduled("cosine"))
    assert (module.net[5].weight[:3] - grows.start[:3]).abs().min() > 0


def test_the_noise_of_upgd_is_not_repeated():
    """It follows from the number of the step, which continues in the new optimizer."""

    class WithUPGD(PlainModule):
        def configure_optimizers(self):
            return UPGD(self.parameters())

    fit = trainer(RestartSchedulers(), max_epochs=4)
    fit.fit(WithUPGD(), GrowingData((2, 2)))
    assert [group["num_steps"] for group in fit.optimizers[0].param_groups] == [fit.global_step] == [12]


class Unconfigured(PlainModule):
    def configure_optimizers(self):
        return None


class GivesOptimizer(Callback):
    def on_fit_start(self, trainer, pl_module):
        trainer.optimizers = [torch.optim.Adam(pl_module.parameters(), lr=0.01)]


@pytest.mark.filterwarnings("ignore:`LightningModule.configure_optimizers` returned `None`")
@pytest.mark.parametrize(("order", "steps"), [(1, 0), (-1, 4)], ids=["before training", "at the event"])
def test_optimizers_that_configure_optimizers_does_not_return_are_not_lost(order, steps):
    """A schedule cannot restart without them, and the training would continue with an optimizer that does nothing."""
    callbacks, rates = [RestartSchedulers(), GivesOptimizer()], Rates()
    training = trainer(*callbacks[::order], rates)
    with pytest.raises(MisconfigurationException, match="which returned None: return them there"):
        training.fit(Unconfigured(), datamodule=GrowingData())
    assert rates.seen == [0.01] * steps
    assert steps == 0 or isinstance(training.optimizers[0], torch.optim.Adam)
