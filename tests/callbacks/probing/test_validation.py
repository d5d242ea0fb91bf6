"""The Trainer's validation before and after an event, if it is asked for, without an effect on training."""

from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from small_training import GrowingData, PlainModule, assert_same_weights, dataset, snapshots_of
from small_training import fitted as trained
from torch.utils.data import DataLoader
from torchmetrics.classification import MulticlassAccuracy

from lightning_fire import EveryNSteps, FIRECallback, FullReset, Log, PlasticityCallback, ReDo

BATCHES = 3
LOG = Log(validation_batches=10)
pytestmark = pytest.mark.filterwarnings("ignore:Your `val_dataloader`'s sampler has shuffling enabled")


class Validated(PlainModule):
    """Logs a number, a torchmetrics object, and at the end of the validation epoch a mean; counts its steps."""

    def __init__(self):
        super().__init__()
        self.accuracy = MulticlassAccuracy(3, average="micro")
        self.losses, self.steps = [], 0
        self.register_buffer("noise", torch.zeros(()))

    def on_validation_epoch_start(self):
        self.losses.clear()

    def validation_step(self, batch, batch_idx):
        assert not self.training and self.trainer.validating and not torch.is_grad_enabled()
        x, y = batch
        logits = self.net(x)
        self.steps += 1
        self.noise += torch.rand(())
        self.losses.append(torch.nn.functional.cross_entropy(logits, y))
        self.log("val/right", (logits.argmax(1) == y).float().mean())
        self.accuracy(logits, y)
        self.log("val/accuracy", self.accuracy)

    def on_validation_epoch_end(self):
        self.log_dict({"val/loss": torch.stack(self.losses).mean()})


class Data(GrowingData):
    def val_dataloader(self):
        return DataLoader(dataset(18, seed=9), batch_size=6, shuffle=True)


def fitted(*callbacks, **options):
    """Without the sanity check, which is another validation."""
    return trained(*callbacks, num_sanity_val_steps=0, **options)


def module():
    torch.manual_seed(0)
    return Validated()


@torch.no_grad()
def slowly(state, batches):
    """Accuracy of a state on the whole validation set, or on its first batches."""
    net = PlainModule().eval()
    net.load_state_dict({name: value for name, value in state.items() if name.startswith("net")})
    x, y = dataset(18, seed=9)[: 6 * batches]
    return float((net.net(x).argmax(1) == y).float().mean())


@pytest.mark.parametrize("batches", [BATCHES, 1])
def test_metrics_are_those_of_the_network_before_and_after(batches):
    class InOrder(Data):
        def val_dataloader(self):
            return DataLoader(dataset(18, seed=9), batch_size=6)

    method = snapshots_of(FIRECallback)(log=Log(validation_batches=batches))
    fitted(method, module=module(), data=InOrder())
    assert len(method.seen) == 2
    for before, after, values in method.seen:
        for key in ("right", "accuracy"):
            assert values[f"fire/val_{key}_before"] == pytest.approx(slowly(before, batches))
            assert values[f"fire/val_{key}_after"] == pytest.approx(slowly(after, batches))
        assert values["fire/val_loss_before"] != values["fire/val_loss_after"]


def test_training_is_not_affected():
    looked = fitted(FIRECallback(log=LOG), module=module(), data=Data())
    not_looked = fitted(FIRECallback(), module=module(), data=Data())
    assert_same_weights(looked, not_looked)  # among them a buffer that counts random numbers
    assert looked.steps == not_looked.steps
    assert looked.trainer.callback_metrics["val/accuracy"] == not_looked.trainer.callback_metrics["val/accuracy"]


@pytest.mark.parametrize(
    "method",
    [
        PlasticityCallback(ReDo(), log=LOG),
        PlasticityCallback(FullReset(), log=Log(weights=False, validation_batches=10)),
        PlasticityCallback(FullReset()),
    ],
)
def test_without_the_option_nothing_is_evaluated(method):
    trainer = fitted(method, module=module(), data=Data()).trainer
    assert not any("/val_" in key for key in trainer.callback_metrics)


def test_without_validation_data_nothing_is_logged():
    method = snapshots_of(FIRECallback)(log=LOG)
    fitted(method)
    assert not any("/val_" in key for key in method.seen[0][2])


def test_a_validation_that_fails_does_not_end_training(caplog):
    class Fails(Validated):
        def validation_step(self, batch, batch_idx):
            if self.trainer.current_epoch == 2 and self.trainer.global_step == 4:
                raise KeyError("not ready")
            super().validation_step(batch, batch_idx)

    torch.manual_seed(0)
    fitted(FIRECallback(log=LOG), module=Fails(), data=Data())
    assert "no validation metrics are logged at events: KeyError" in caplog.text


def test_a_negative_number_of_batches_is_an_error():
    with pytest.raises(ValueError, match="`validation_batches` must be at least 0, got -1"):
        Log(validation_batches=-1)


class Collecting(PlainModule):
    """Collects its predictions from `on_validation_start` on, one of several hooks."""

    def __init__(self):
        super().__init__()
        self.right = []

    def on_validation_start(self):
        self.right = []

    def validation_step(self, batch, batch_idx):
        self.right.append(self.net(batch[0]).argmax(1) == batch[1])

    def on_validation_epoch_end(self):
        self.log("val/samples", float(len(torch.cat(self.right))))


class Hooks(Callback):
    """Notes the hooks of validation that are called in an event, which comes with a batch."""

    def __init__(self):
        self.called, self.now = [], []

    def __getattribute__(self, name):
        if name.startswith("on_validation"):
            vars(self)["now"].append(name)
        return super().__getattribute__(name)

    def on_train_batch_start(self, *args):
        self.called, self.now = [*self.called, *self.now], []

    def on_train_batch_end(self, *args):
        self.now = []

    on_train_epoch_start = on_train_batch_end


def test_every_hook_of_the_module_and_of_callbacks_runs():
    method, hooks = snapshots_of(FIRECallback)(log=LOG), Hooks()
    fitted(method, hooks, module=Collecting(), data=Data((1, 1)), max_epochs=2)
    assert method.seen[0][2]["fire/val_samples_before"] == method.seen[0][2]["fire/val_samples_after"] == 18
    expected = ["start", "epoch_start", *("batch_start", "batch_end") * BATCHES, "epoch_end", "end"]
    assert hooks.called == [f"on_validation_{name}" for name in expected] * 2


class TwoModes(torch.optim.SGD):
    """As of schedulefree: an error if a step is made in evaluation mode."""

    mode = "train"

    def train(self):
        self.mode = "train"

    def eval(self):
        self.mode = "eval"

    def step(self, closure=None):
        assert self.mode == "train"
        return super().step(closure)


def test_an_optimizer_with_modes_is_in_training_mode_again():
    class ScheduleFree(Validated):
        def on_train_epoch_start(self):
            self.optimizers().optimizer.train()

        def on_validation_epoch_start(self):
            self.losses.clear()
            self.optimizers().optimizer.eval()

        def configure_optimizers(self):
            return TwoModes(self.parameters(), lr=1e-2)

    method = snapshots_of(FIRECallback)(EveryNSteps(3), log=LOG)
    fitted(method, module=ScheduleFree(), data=Data())
    assert "fire/val_loss_after" in method.seen[0][2]


def test_weights_that_validation_leaves_behind_are_set_back():
    """A module that swaps an average in, and out again only when an epoch of training starts."""

    class Swaps(Validated):
        @torch.no_grad()
        def on_validation_start(self):
            self.own = [parameter.clone() for parameter in self.net.parameters()]
            for parameter in self.net.parameters():
                parameter.zero_()

        @torch.no_grad()
        def on_train_epoch_start(self):
            for parameter, value in zip(self.net.parameters(), getattr(self, "own", ()), strict=False):
                parameter.copy_(value)
            self.own = []

    torch.manual_seed(0)
    method = snapshots_of(FIRECallback)(log=LOG)
    with pytest.warns(UserWarning, match="validation at an event has left the module with other weights"):
        looked = fitted(method, module=Swaps(), data=Data())
    torch.manual_seed(0)
    assert_same_weights(looked, fitted(FIRECallback(), module=Swaps(), data=Data()))
    before, after, _ = method.seen[0]
    assert not torch.equal(before["net.0.weight"], after["net.0.weight"])


def test_callbacks_that_save_and_stop_have_no_part(tmp_path):
    def state(log):
        stop = EarlyStopping("val/loss", patience=50)
        best = ModelCheckpoint(tmp_path / str(log.validation_batches), "{epoch}", monitor="val/loss", save_top_k=-1)
        fitted(FIRECallback(log=log), stop, best, module=module(), data=Data())
        return stop.state_dict(), {Path(path).name: float(loss) for path, loss in best.best_k_models.items()}

    assert str(state(LOG)) == str(state(Log()))
