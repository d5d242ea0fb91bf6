"""The regularisers through real fits: they equal the penalty in the loss, and `IsometryDecay` equals AdamO."""

import pytest
import reference
import torch
from lightning.pytorch import Callback
from lightning.pytorch.plugins import MixedPrecision
from small_training import GrowingData, PlainModule, assert_same_weights, fitted, initial_state, trainer
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from lightning_fire import (
    IsometryDecay,
    L2Init,
    Parameters,
    Parseval,
    PlasticityCallback,
    SpectralRegularization,
    Weights,
)
from lightning_fire.functional import parseval_gradient, parseval_penalty


def distance(module, strength, include=""):
    start = initial_state()
    return strength * sum((p - start[name]).pow(2).sum() for name, p in module.named_parameters() if include in name)


def orthogonality(module, strength, norms=False):
    total = sum(reference.parseval_penalty(module.net[i].weight) for i in (0, 3, 5))
    if norms:
        total = total + (module.net[1].weight ** 2 - 1).pow(2).sum()
    return strength * total


class SpectralNorms:
    """(σ₁² − 1)² of the weights, estimated in each step, and ‖b‖⁴ of their biases."""

    def __init__(self, layers=(0, 3, 5)):
        self.layers, self.step = layers, None
        self.vectors = SpectralRegularization(1.0).attach(seeded(PlainModule)).vectors

    def __call__(self, module, strength):
        total = sum(module.net[i].bias.norm() ** 4 for i in self.layers)
        for i in self.layers:
            weight = module.net[i].weight
            v = self.vectors[f"net.{i}.weight"][0]
            if self.step != module.global_step:
                v = (weight.T @ (weight @ v)).detach()
                self.vectors[f"net.{i}.weight"] = (v := v / v.norm())[None]
            total = total + ((weight @ v).norm() ** 2 - 1) ** 2
        self.step = module.global_step
        return strength * total


class WithSGD(PlainModule):
    """Adam would amplify the rounding of a zero gradient, that of the bias before the BatchNorm."""

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


class InTheLoss(WithSGD):
    """The same with autograd; on from epoch `start` on."""

    def __init__(self, penalty, start=0):
        super().__init__()
        self.penalty, self.start = penalty, start

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return loss + self.penalty(self) if self.current_epoch >= self.start else loss


def spectral(layers=(0, 3, 5), strength=0.05):
    norms = []  # made at the first call: they are of one run

    def penalty(module):
        if module.global_step == 0 and module.trainer.fit_loop.epoch_loop.batch_idx == 0:
            norms[:] = [SpectralNorms(layers)]
        return norms[0](module, strength)

    return penalty


def seeded(build):
    torch.manual_seed(0)
    return build()


CASES = [
    (lambda: PlasticityCallback(L2Init(0.1)), lambda module: distance(module, 0.1)),
    (
        lambda: PlasticityCallback(L2Init(0.1, where=Parameters(include=["net.3"]))),
        lambda module: distance(module, 0.1, "net.3"),
    ),
    (lambda: PlasticityCallback(Parseval(0.05)), lambda module: orthogonality(module, 0.05)),
    (lambda: PlasticityCallback(Parseval(0.05, norms=True)), lambda module: orthogonality(module, 0.05, norms=True)),
    (lambda: PlasticityCallback(SpectralRegularization(0.05)), spectral()),
    (
        lambda: PlasticityCallback(SpectralRegularization(0.05, where=Weights(preset="cnn", include=["net.3"]))),
        spectral((3,)),
    ),
]


@pytest.mark.parametrize(("callback", "penalty"), CASES)
@pytest.mark.parametrize("options", [{}, {"gradient_clip_val": 0.3}, {"accumulate_grad_batches": 2}])
def test_it_equals_the_penalty_in_the_loss(callback, penalty, options):
    with_callback = fitted(callback(), module=seeded(WithSGD), **options)
    in_the_loss = fitted(module=seeded(lambda: InTheLoss(penalty)), **options)
    plain = fitted(module=seeded(WithSGD), **options)
    for name, tensor in with_callback.state_dict().items():
        torch.testing.assert_close(tensor, in_the_loss.state_dict()[name], rtol=1e-4, atol=1e-5, msg=name)
    assert not torch.allclose(with_callback.net[3].weight, plain.net[3].weight, atol=1e-3)


@pytest.mark.parametrize("kind", [L2Init, Parseval, SpectralRegularization])
def test_it_begins_with_its_chunk(kind):
    """Chunk 1 begins with epoch 2."""
    penalty = {L2Init: distance, Parseval: orthogonality, SpectralRegularization: SpectralNorms()}[kind]
    with_callback = fitted(PlasticityCallback(kind(0.1), start_chunk=1), module=seeded(WithSGD))
    in_the_loss = fitted(module=seeded(lambda: InTheLoss(lambda module: penalty(module, 0.1), start=2)))
    for name, tensor in with_callback.state_dict().items():
        torch.testing.assert_close(tensor, in_the_loss.state_dict()[name], rtol=1e-4, atol=1e-5, msg=name)


class TwoOptimizers(PlainModule):
    """Each optimizer steps its own half, in turn; the other half has gradients too."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()[batch_idx % 2]
        optimizer.zero_grad()
        self.manual_backward(super().training_step(batch, batch_idx))
        optimizer.step()

    def configure_optimizers(self):
        return [torch.optim.SGD(part.parameters(), 0.1) for part in (self.net[0], self.net[3:])]


class Gradients(Callback):
    """Keeps the gradients before the step of one optimizer: with and without the penalty they differ by it alone."""

    def __init__(self):
        self.seen = []

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        names = {parameter: name for name, parameter in pl_module.named_parameters()}
        owned = {names[parameter] for group in optimizer.param_groups for parameter in group["params"]}
        self.seen.append((owned, {n: p.grad.clone() for n, p in pl_module.named_parameters() if p.grad is not None}))


def test_of_several_optimizers_each_gets_the_penalty_of_its_own_parameters():
    before, after = Gradients(), Gradients()
    fitted(before, PlasticityCallback(L2Init(0.1)), after, module=seeded(TwoOptimizers), max_epochs=3)
    changed = [
        {name for name in old if not torch.equal(old[name], new[name])}
        for (_, old), (_, new) in zip(before.seen, after.seen, strict=True)
    ]
    assert changed[0] == set()  # still at the initial values
    assert changed[2] - {"net.0.bias"} == {"net.0.weight"}  # the bias before BatchNorm has not moved
    assert changed[3] == {"net.3.weight", "net.3.bias", "net.5.weight", "net.5.bias"}


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


def test_fused_transposed_and_grouped_weights_are_penalised_as_the_matrices_they_are():
    class Odd(PlainModule):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(4, 2)
            self.grouped = nn.Conv2d(4, 6, 3, groups=2)
            self.up = nn.ConvTranspose1d(5, 3, 2)

        def training_step(self, batch, batch_idx):  # all of them have gradients, of zero
            rest = sum(p.sum() for m in (self.attention, self.grouped, self.up) for p in m.parameters())
            return super().training_step(batch, batch_idx) + 0 * rest

    before, after = Gradients(), Gradients()
    where = Weights(preset="cnn", include=[r"in_proj_weight\[[qk]\]", "grouped", "up"])
    module = seeded(Odd)
    start = {name: parameter.detach().clone().requires_grad_() for name, parameter in module.named_parameters()}
    fitted(before, PlasticityCallback(Parseval(0.5, where=where)), after, module=module, max_epochs=1)
    query, key, _ = start["attention.in_proj_weight"].chunk(3)
    total = sum(reference.parseval_penalty(part) for part in (query, key, start["up.weight"].transpose(0, 1)))
    (0.5 * (total + reference.parseval_penalty(start["grouped.weight"], groups=2))).backward()
    for name in ("attention.in_proj_weight", "grouped.weight", "up.weight"):
        torch.testing.assert_close(after.seen[0][1][name] - before.seen[0][1][name], start[name].grad, msg=name)
    assert torch.equal(after.seen[0][1]["net.0.weight"], before.seen[0][1]["net.0.weight"])


def test_the_penalty_is_logged(tmp_path):
    module = fitted(PlasticityCallback(L2Init(0.1), start_chunk=1), PlasticityCallback(Parseval(0.05)), folder=tmp_path)
    log = EventAccumulator(str(tmp_path)).Reload()
    assert len(log.Scalars("parseval/penalty")) == 6
    assert len(log.Scalars("l2_init/penalty")) == 4
    assert log.Scalars("l2_init/penalty")[-1].value == pytest.approx(distance(module, 0.1).item(), rel=1e-4)
    assert log.Scalars("parseval/penalty")[-1].value == pytest.approx(orthogonality(module, 0.05).item(), rel=1e-4)


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


def test_isometry_decay_changes_the_selected_weights_alone_and_no_moments():
    one = {"max_epochs": 1, "limit_train_batches": 1}
    decayed = fitted(PlasticityCallback(IsometryDecay(2.0, where=Weights(preset="cnn", include=["net.3"]))), **one)
    plain = fitted(**one)
    changed = {n for n, t in decayed.state_dict().items() if not torch.equal(t, plain.state_dict()[n])}
    assert changed == {"net.3.weight"}
    for (_, ours), (_, theirs) in zip(*(m.trainer.optimizers[0].state.items() for m in (decayed, plain)), strict=True):
        assert all(torch.equal(ours[key], theirs[key]) for key in ("step", "exp_avg", "exp_avg_sq"))


def test_isometry_decay_with_strength_0_does_nothing():
    assert_same_weights(fitted(PlasticityCallback(IsometryDecay(0.0))), fitted())


def test_isometry_decay_leaves_what_is_not_stepped():
    class Still(TwoOptimizers):
        def training_step(self, batch, batch_idx):
            optimizer = self.optimizers()[1]  # steps net.3 and net.5; net.0 has gradients too
            optimizer.zero_grad()
            self.manual_backward(PlainModule.training_step(self, batch, batch_idx) * 0)
            optimizer.step()

    start, module = initial_state(), fitted(PlasticityCallback(IsometryDecay(0.5)), module=seeded(Still))
    assert torch.equal(module.net[0].weight, start["net.0.weight"])
    deviations = [parseval_penalty(weight) for weight in (start["net.3.weight"], module.net[3].weight)]
    assert deviations[1] < 0.2 * deviations[0]


def test_a_second_fit_continues_with_the_estimates_of_the_first():
    callback = PlasticityCallback(SpectralRegularization(0.1))
    module = fitted(callback, max_epochs=2)
    before = dict(callback._state["vectors"])
    trainer(callback, max_epochs=1).fit(module, datamodule=GrowingData())
    assert before.keys() == callback._state["vectors"].keys() == {"net.0.weight", "net.3.weight", "net.5.weight"}
    for name, vector in callback._state["vectors"].items():
        assert not torch.equal(vector, before[name])
        assert vector.norm().item() == pytest.approx(1.0)
