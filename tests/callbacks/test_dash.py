"""`DASH` through real fits over growing data, and the data probe that it uses."""

import pytest
import reference
import torch
from small_training import (
    GrowingData,
    PlainModule,
    assert_same_weights,
    dataset,
    fitted,
    snapshots_of,
    trainer,
)
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tolerances import assert_near
from torch import nn
from torch.utils.data import DataLoader
from torchmetrics.classification import MulticlassAccuracy

from lightning_fire import DASH, AtEpochs, PlasticityCallback
from lightning_fire.methods import Change

Snapshots = snapshots_of(PlasticityCallback)
LAYERS = ("net.0", "net.3", "net.5")


def directions(state, batches, alpha):
    """The EMA of the negative gradients in a plain loop, with a plain network in training mode."""
    module = PlainModule()
    module.load_state_dict(state)
    average = {name: torch.zeros_like(parameter) for name, parameter in module.named_parameters()}
    for x, y in batches:
        module.zero_grad()
        nn.functional.cross_entropy(module.net(x), y).backward()
        for name, parameter in module.named_parameters():
            average[name] = (1 - alpha) * average[name] + alpha * -parameter.grad
    return average


@pytest.mark.parametrize(
    "options", [{}, {"alpha": 0.1, "minimum": 0.05}, {"num_batches": 2}, {"alpha": 1.0, "minimum": 0.1}]
)
def test_weights_and_biases_shrink_by_their_direction_and_nothing_else_moves_by_a_bit(options):
    """Chunks of 4 and 6 batches: fewer than the average would take, so it is of all of them."""
    callback = Snapshots(DASH(**options))
    fitted(callback)
    for (before, after, _), size in zip(callback.seen, (24, 36), strict=True):
        batches = list(DataLoader(dataset(size=size), batch_size=6))
        expected = directions(before, batches[: callback.method.batches], callback.method.alpha)
        for name in before:
            if name == "net.0.bias":
                continue  # BatchNorm follows: its gradient is rounding error, without a direction
            if name.rpartition(".")[0] in LAYERS:
                assert_near(after[name], reference.dash(before[name], expected[name], callback.method.minimum))
            else:
                assert torch.equal(after[name], before[name]), name


def test_how_many_batches_count():
    assert DASH(alpha=0.3).batches == 26
    assert DASH(alpha=0.1).batches == 88
    assert DASH(alpha=1.0).batches == 1
    for alpha in (0.1, 0.3):
        assert (1 - alpha) ** DASH(alpha=alpha).batches <= 1e-4 < (1 - alpha) ** (DASH(alpha=alpha).batches - 1)


class Draws(PlainModule):
    """With dropout, a metric and logs: everything that a look at the data could change."""

    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.5)
        self.accuracy = MulticlassAccuracy(3)

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self.net(self.dropout(x))
        loss = nn.functional.cross_entropy(logits, y)
        self.accuracy(logits, y)
        self.log("accuracy", self.accuracy, on_step=True, on_epoch=True)
        self.log("loss", loss)
        return {"loss": loss}


class Shuffled(GrowingData):
    """Draws its order from the global random state, in worker-less loaders as most have them."""

    def train_dataloader(self):
        return DataLoader(super().train_dataloader().dataset, batch_size=6, shuffle=True)


class Looks(PlasticityCallback):
    """Looks, and changes nothing."""

    def plan(self, trainer, pl_module):
        gradients = [parameter.grad for parameter in pl_module.parameters()]
        super().plan(trainer, pl_module)
        self.gradients_stay = all(p.grad is g for p, g in zip(pl_module.parameters(), gradients, strict=True))
        return Change({})


def test_looking_leaves_training_unchanged(tmp_path):
    """Weights, buffers, order of batches, dropout, metrics and logs of the whole run are as without it."""
    runs = {}
    for name, callbacks in (("with", [Looks(DASH(optimizer_state="keep"))]), ("without", [])):
        torch.manual_seed(0)
        runs[name] = fitted(*callbacks, module=Draws(), data=Shuffled(), folder=tmp_path / name)
        runs[name, "log"] = EventAccumulator(str(tmp_path / name)).Reload()
    assert callbacks == []
    assert_same_weights(runs["with"], runs["without"])
    for tag in ("accuracy_step", "accuracy_epoch", "loss"):
        one, other = (
            [(event.step, event.value) for event in runs[name, "log"].Scalars(tag)] for name in ("with", "without")
        )
        assert one == other


def test_gradients_are_left_alone():
    callback = Looks(DASH())
    fitted(callback)
    assert callback.gradients_stay


def test_persistent_workers_continue_to_serve_the_training(tmp_path):
    class Workers(GrowingData):
        def train_dataloader(self):
            data = super().train_dataloader().dataset
            return DataLoader(data, batch_size=6, num_workers=1, persistent_workers=True)

    assert_same_weights(
        fitted(PlasticityCallback(DASH(), AtEpochs([1])), data=Workers((2,)), max_epochs=2),
        fitted(PlasticityCallback(DASH(), AtEpochs([1])), data=GrowingData((2,)), max_epochs=2),
    )


def test_several_loaders_and_a_training_step_without_index():
    class Pair(PlainModule):
        def training_step(self, batch):
            return super().training_step(batch["a"], 0) + super().training_step(batch["b"], 0)

    loaders = {"a": DataLoader(dataset(), batch_size=6), "b": DataLoader(dataset(seed=1), batch_size=6)}
    callback = Snapshots(DASH(), AtEpochs([1]))
    torch.manual_seed(0)
    trainer(callback, max_epochs=2).fit(Pair(), loaders)
    before, after, values = callback.seen[0]
    assert values["dash/batches"] == 4
    assert not torch.equal(before["net.3.weight"], after["net.3.weight"])
