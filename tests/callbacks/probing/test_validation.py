"""Metrics of `validation_step` before and after an event, without an effect on training."""

import pytest
import torch
from small_training import GrowingData, PlainModule, assert_same_weights, dataset, snapshots_of
from small_training import fitted as trained
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

from lightning_fire import Change, EventMethod, FIRECallback, FullReset, Log, PlasticityCallback, ReDo

BATCHES = 3
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
    looked = fitted(FIRECallback(), module=module(), data=Data())
    not_looked = fitted(FIRECallback(log=Log(validation_batches=0)), module=module(), data=Data())
    assert_same_weights(looked, not_looked)  # among them a buffer that counts random numbers
    assert looked.steps == not_looked.steps
    assert looked.trainer.callback_metrics["val/accuracy"] == not_looked.trainer.callback_metrics["val/accuracy"]


@pytest.mark.parametrize(
    "method",
    [
        PlasticityCallback(ReDo()),
        PlasticityCallback(FullReset(), log=Log(weights=False)),
        PlasticityCallback(FullReset(), log=Log(validation_batches=0)),
    ],
)
def test_without_the_option_nothing_is_evaluated(method):
    trainer = fitted(method, module=module(), data=Data()).trainer
    assert not any("/val_" in key for key in trainer.callback_metrics)


def test_without_validation_data_nothing_is_logged():
    method = snapshots_of(FIRECallback)()
    fitted(method)
    assert not any("/val_" in key for key in method.seen[0][2])


def test_a_validation_that_fails_does_not_end_training(caplog):
    class Fails(Validated):
        def validation_step(self, batch, batch_idx):
            if self.trainer.current_epoch == 2 and self.trainer.global_step == 4:
                raise KeyError("not ready")
            super().validation_step(batch, batch_idx)

    torch.manual_seed(0)
    fitted(FIRECallback(), module=Fails(), data=Data())
    assert "logs no validation metrics: KeyError" in caplog.text


def test_warns_of_an_accuracy_that_falls_to_chance():
    """Three clusters, learned at once; with weights of zero, every prediction is the first class."""
    y = torch.arange(48) % 3
    x = torch.nn.functional.one_hot(y, 6) * 5 + torch.randn(48, 6, generator=torch.Generator().manual_seed(0))

    class Clusters(Data):
        def train_dataloader(self):
            return DataLoader(TensorDataset(x, y), batch_size=6)

        val_dataloader = train_dataloader

    class Zero(EventMethod):
        name = "zero"

        def plan(self, model, training):
            return Change({p: torch.zeros_like(p) for p in model.parameters()})

    with pytest.warns(
        UserWarning, match=r"An event of zero has reduced val/\w+ from 1\.00 to 0\.33, near chance for 3 outputs"
    ):
        fitted(PlasticityCallback(Zero()), module=module(), data=Clusters((4, 2)))


def test_a_negative_number_of_batches_is_an_error():
    with pytest.raises(ValueError, match="`validation_batches` must be at least 0, got -1"):
        Log(validation_batches=-1)
