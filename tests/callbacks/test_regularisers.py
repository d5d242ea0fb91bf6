"""The regularisers through real fits: they equal the penalty in the loss, and `IsometryDecay` equals AdamO."""

import pytest
import reference
import torch
from lightning.pytorch.plugins import MixedPrecision
from small_training import GrowingData, PlainModule, assert_same_weights, fitted, initial_state

from lightning_fire import (
    IsometryDecay,
    Parseval,
    PlasticityCallback,
    SpectralRegularization,
)
from lightning_fire.functional import parseval_gradient


def seeded(build):
    torch.manual_seed(0)
    return build()


class WithSGD(PlainModule):
    """Adam would amplify the rounding of a zero gradient, that of the bias before the BatchNorm."""

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


class InTheLoss(WithSGD):
    """The penalty of Parseval with autograd, from chunk 1 on."""

    def training_step(self, batch, batch_idx):
        total = sum(reference.parseval_penalty(self.net[i].weight) for i in (0, 3, 5))
        total = total + (self.net[1].weight ** 2 - 1).pow(2).sum()
        return super().training_step(batch, batch_idx) + (0.05 * total if self.current_epoch >= 2 else 0.0)


@pytest.mark.parametrize("options", [{"gradient_clip_val": 0.3}, {"accumulate_grad_batches": 2}])
def test_it_equals_the_penalty_in_the_loss(options):
    """Of each penalty by itself: `test_penalties_of_models`."""
    method = PlasticityCallback(Parseval(0.05, norms=True), start_chunk=1)
    with_callback = fitted(method, module=seeded(WithSGD), **options)
    in_the_loss = fitted(module=seeded(InTheLoss), **options)
    plain = fitted(module=seeded(WithSGD), **options)
    for name, tensor in with_callback.state_dict().items():
        torch.testing.assert_close(tensor, in_the_loss.state_dict()[name], rtol=1e-4, atol=1e-5, msg=name)
    assert not torch.allclose(with_callback.net[3].weight, plain.net[3].weight, atol=1e-3)


@pytest.mark.filterwarnings("ignore:`training_step` returned `None`")
def test_a_batch_without_loss_is_left_alone():
    class Skips(PlainModule):
        def training_step(self, batch, batch_idx):
            return None

    assert_same_weights(
        fitted(PlasticityCallback(Parseval(0.1)), module=seeded(Skips), max_epochs=2), seeded(PlainModule)
    )


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("kind", [Parseval, IsometryDecay])  # of SGD the same
def test_the_scale_of_mixed_precision_does_not_reach_the_penalty(kind, fused):
    """A fused optimizer unscales in its own step, after the callbacks: then the penalty must be scaled as well."""

    class PenaltyOnly(PlainModule):
        def training_step(self, batch, batch_idx):
            return 0.0 * super().training_step(batch, batch_idx)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1, fused=fused)

    module, start = seeded(PenaltyOnly), initial_state()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    plugin = MixedPrecision("16-mixed", "cpu", scaler=scaler)
    fitted(PlasticityCallback(kind(0.05)), module=module, plugins=[plugin], max_epochs=1, limit_train_batches=1)
    for i in (0, 3, 5):
        expected = start[f"net.{i}.weight"] - 0.1 * 0.05 * parseval_gradient(start[f"net.{i}.weight"])
        torch.testing.assert_close(module.net[i].weight.detach(), expected)


def test_largest_singular_values_end_near_1():
    """The claim of the paper (Section 4); without the penalty they end above 1.5."""

    def norms(module):
        return [torch.linalg.matrix_norm(module.net[i].weight, 2).item() for i in (0, 3, 5)]

    many = {"max_epochs": 60, "data": GrowingData((20, 20, 20))}
    assert max(norms(fitted(**many))) > 1.5
    assert norms(fitted(PlasticityCallback(SpectralRegularization(1.0)), **many)) == pytest.approx([1.0] * 3, abs=0.15)


class WithAdamO(PlainModule):
    def configure_optimizers(self):
        weights = [self.net[i].weight for i in (0, 3, 5)]
        return reference.AdamO(self.parameters(), weights, strength=2.0, lr=1e-2)


WITHOUT_EFFECT = {"net.0.bias", "net.1.running_mean"}  # before the BatchNorm: Adam blows up the rounding of a zero


@pytest.mark.parametrize("options", [{}, {"gradient_clip_val": 0.01}, {"accumulate_grad_batches": 2}])
def test_isometry_decay_beside_adam_is_adamo(options):
    with_callback = fitted(PlasticityCallback(IsometryDecay(2.0)), **options)
    expected, plain = fitted(module=seeded(WithAdamO), **options), fitted(**options)
    for name, tensor in with_callback.state_dict().items():
        if name not in WITHOUT_EFFECT:
            torch.testing.assert_close(tensor, expected.state_dict()[name], rtol=1e-4, atol=1e-5, msg=name)
    assert not torch.allclose(with_callback.net[3].weight, plain.net[3].weight, atol=1e-2)
