"""`LossCurvature`: mean over batches of the function, in training and by itself."""

import pickle

import pytest
import torch
from small_training import PlainData, PlainModule, fitted
from torch import nn

from lightning_fire.functional import loss_curvature
from lightning_fire.metrics import LossCurvature


def net_and_batches() -> tuple[nn.Module, list]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    return net, [(torch.randn(8, 4).double(), torch.randint(0, 3, (8,))) for _ in range(3)]


def loss_of(net, batch):
    x, y = batch
    return nn.functional.cross_entropy(net(x), y)


def test_mean_over_batches_forward_reset_and_pickle():
    net, batches = net_and_batches()
    parameters = list(net.parameters())
    expected = [loss_curvature(loss_of(net, batch), parameters).value for batch in batches]
    metric = LossCurvature()
    for batch, value in zip(batches, expected, strict=True):
        assert metric(loss_of(net, batch), net.parameters()).item() == pytest.approx(value)
    assert metric.compute().item() == pytest.approx(sum(expected) / 3)
    assert pickle.loads(pickle.dumps(metric)).compute() == metric.compute()
    metric.reset()
    metric.update(loss_of(net, batches[1]), net.parameters())
    assert metric.compute().item() == pytest.approx(expected[1])


def test_it_bounds_the_curvature_of_the_mean_loss():
    net, batches = net_and_batches()
    metric = LossCurvature(tolerance=1e-6)
    for batch in batches:
        metric.update(loss_of(net, batch), net.parameters())
    mean = sum(loss_of(net, batch) for batch in batches) / 3
    assert loss_curvature(mean, list(net.parameters()), 1e-6).value < metric.compute().item()


def test_in_training_the_loss_can_be_derived_afterwards():
    class Watching(PlainModule):
        def __init__(self):
            super().__init__()
            self.curvature = LossCurvature()
            self.expected = []

        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            self.expected.append(loss_curvature(loss, list(self.parameters())).value)
            self.log("curvature", self.curvature(loss, self.parameters()), on_step=False, on_epoch=True)
            return loss

    torch.manual_seed(0)
    watching = fitted(data=PlainData(), module=Watching(), max_epochs=1)
    plain = fitted(data=PlainData(), max_epochs=1)
    for one, other in zip(watching.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other)
    assert watching.trainer.callback_metrics["curvature"].item() == pytest.approx(
        sum(watching.expected) / len(watching.expected)
    )
    assert watching.curvature.number_of_batches == 4


def test_errors_are_those_of_the_function():
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(ValueError, match="`loss` must be a scalar"):
        LossCurvature().update(x**2, [x])
    with pytest.raises(ValueError, match="`tolerance` must be above 0"):
        LossCurvature(tolerance=0).update((x**2).sum(), [x])
