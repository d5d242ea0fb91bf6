"""`FeatureRank` through real fits: equals a slow version; selection, schedule, resume, errors."""

import math

import pytest
import reference
import torch
from small_training import PlainModule, assert_same_weights, fitted, state_of
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from lightning_fire import FeatureRank, HiddenUnits, methods

# The bias before the BatchNorm is without effect, and Adam amplifies the rounding of its zero gradient.
WITHOUT_EFFECT = {"net.0.bias", "net.1.running_mean"}


class WithSlowSteps(PlainModule):
    """Steps up the mean rank of its two hidden layers after every second batch and the last one of an epoch."""

    def on_train_epoch_start(self):
        self.batches = []

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.batches.append(batch)
        if len(self.batches) < 2 and not self.trainer.is_last_batch:
            return
        buffers = [(buffer, buffer.clone()) for buffer in self.buffers()]
        with torch.enable_grad():
            first = [self.net[:3](x) for x, _ in self.batches]
            second = [self.net[3:5](features) for features in first]
            rank = sum(reference.rank_of_features(torch.cat(features)) for features in (first, second)) / 2
            parameters = list(self.parameters())
            gradients = torch.autograd.grad(rank, parameters, allow_unused=True)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                if gradient is not None:
                    parameter += 0.01 * gradient
            for buffer, before in buffers:
                buffer.copy_(before)
        self.batches = []


def seeded(build):
    torch.manual_seed(0)
    return build()


@pytest.mark.parametrize("options", [{}, {"accumulate_grad_batches": 2}, {"max_epochs": 3, "limit_train_batches": 3}])
def test_it_equals_the_slow_version(options):
    fast, slow = (
        fitted(FeatureRank(0.01, every_n_batches=2), **options),
        fitted(module=seeded(WithSlowSteps), **options),
    )
    plain = fitted(**options)
    for name, tensor in fast.state_dict().items():
        if name not in WITHOUT_EFFECT:
            torch.testing.assert_close(tensor, slow.state_dict()[name], rtol=1e-3, atol=1e-4, msg=name)
    assert not torch.allclose(fast.net[3].weight, plain.net[3].weight, atol=1e-2)


def test_the_rank_ends_higher_than_without(tmp_path):
    """The claim of the paper: it keeps the rank of the features high."""

    def last_rank(lr, folder):
        fitted(FeatureRank(lr), folder=folder)
        return EventAccumulator(str(folder)).Reload().Scalars("feature_rank/rank")[-1].value

    assert last_rank(0.1, tmp_path / "with") > 1.1 * last_rank(0.0, tmp_path / "without")


def test_only_what_the_selected_features_depend_on_moves():
    one = {"max_epochs": 1, "limit_train_batches": 1}
    some = fitted(FeatureRank(0.1, where=HiddenUnits(include=["net.0"])), **one)
    plain = fitted(**one).state_dict()
    changed = {name for name, tensor in some.state_dict().items() if not torch.equal(tensor, plain[name])}
    assert changed - {"net.0.bias"} == {"net.0.weight", "net.1.weight", "net.1.bias"}


def test_without_a_learning_rate_and_before_its_chunk_every_bit_is_that_of_plain_training():
    assert_same_weights(fitted(FeatureRank(0.0, every_n_batches=2)), fitted())
    assert_same_weights(fitted(FeatureRank(0.1, start_chunk=1), max_epochs=2), fitted(max_epochs=2))


def test_features_that_are_not_finite_make_no_step():
    module, x = seeded(PlainModule), torch.randn(6, 6)
    method = methods.RankAscent(module, lambda: module.net(x), lr=0.1)
    torch.nn.init.constant_(module.net[3].bias, float("nan"))
    before = module.net[0].weight.clone()
    assert math.isnan(method.step(lambda: module.net(x)))
    assert torch.equal(module.net[0].weight, before)


def test_a_selection_without_units_is_an_error_before_training():
    with pytest.raises(ValueError, match="layer99"):
        fitted(FeatureRank(0.1, where=HiddenUnits(include=["layer99"])))


def test_a_step_that_is_not_finite_changes_no_parameter():
    """Features so small that the gradient of their rank overflows."""
    torch.manual_seed(0)
    first, second = nn.Linear(6, 8, bias=False), nn.Linear(8, 8, bias=False)
    model, x = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Linear(8, 2)), torch.randn(16, 6)
    for layer in (first, second):
        layer.weight.data *= 1e-20
    method, before = methods.RankAscent(model, lambda: model(x), lr=1e-2), state_of(model)
    assert math.isnan(method.step(lambda: model(x)))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
