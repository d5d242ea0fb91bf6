"""`UPGD` against the slow version, by its formulas, and through real fits."""

import copy
import math

import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from lightning.pytorch.callbacks import ModelCheckpoint
from small_training import PlainModule, assert_same_weights, fitted
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from lightning_fire import UPGD
from lightning_fire.methods.base.optimizers import drop_state
from lightning_fire.methods.initial_values import seed_of_draw

SHAPES = [(3, 2), (4,), (2, 1, 3, 3)]


def stepped(weights, gradients, **options):
    """Do a step for each list of gradients; return the parameters."""
    parameters = [nn.Parameter(weight.clone()) for weight in weights]
    optimizer = UPGD(parameters, **options)
    for of_weights in gradients:
        for parameter, gradient in zip(parameters, of_weights, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
    return [parameter.detach() for parameter in parameters]


@pytest.mark.parametrize("noise", [0.0, 0.3])
@pytest.mark.parametrize("beta", [0.0, 0.9, 0.999])
def test_steps_are_those_of_the_slow_version(beta, noise):
    weights = [torch.randn(shape) for shape in SHAPES]
    gradients = [[torch.randn(shape) for shape in SHAPES] for _ in range(4)]
    noises = []
    for step in range(1, 5):
        generator = torch.Generator().manual_seed(seed_of_draw(7, step))
        noises.append([noise * torch.empty(shape).normal_(generator=generator) for shape in SHAPES])
    expected = reference.upgd(weights, gradients, noises, lr=0.05, decay=0.1, beta=beta)
    options = {"lr": 0.05, "weight_decay": 0.1, "utility_decay": beta, "noise": noise, "seed": 7}
    for ours, slow in zip(stepped(weights, gradients, **options), expected, strict=True):
        torch.testing.assert_close(ours.double(), slow, rtol=1e-5, atol=1e-6)


@given(st.floats(1e-3, 1e3), st.integers(0, 2**16))
def test_the_scale_of_the_loss_only_scales_the_step(scale, seed):
    generator = torch.Generator().manual_seed(seed)
    weight, gradient = torch.randn(2, 6, generator=generator, dtype=torch.float64)
    plain = {"weight_decay": 0.0, "noise": 0.0}
    (one,) = stepped([weight], [[gradient]], lr=0.1, **plain)
    (other,) = stepped([weight], [[scale * gradient]], lr=0.1 / scale, **plain)
    torch.testing.assert_close(other, one)


def test_the_most_useful_weight_takes_the_smallest_part_of_its_step():
    """Paper, section 3: less for useful weights, more for others. At the first step u is η / (1 - β)."""
    weight, gradient = torch.tensor([1.0, 0.1, 0.0, -1.0]), torch.full((4,), -1.0)
    (moved,) = stepped([weight], [[gradient]], lr=1.0, weight_decay=0.0, noise=0.0, utility_decay=0.5)
    parts = [1 / (1 + math.exp(2 * utility)) for utility in (1.0, 0.1, 0.0, -1.0)]
    torch.testing.assert_close(moved - weight, torch.tensor(parts))


def test_noise_has_its_standard_deviation_and_half_of_it_is_applied_at_zero_utility():
    (moved,) = stepped([torch.zeros(100_000)], [[torch.zeros(100_000)]], lr=1.0, noise=0.2)
    assert moved.std().item() == pytest.approx(0.1, rel=0.01)
    assert moved.mean().item() == pytest.approx(0.0, abs=1e-3)


def test_noise_is_new_at_each_step_and_leaves_the_global_random_state():
    before = torch.get_rng_state()
    zero = [torch.zeros(50), torch.zeros(50)]
    once, twice = (stepped(zero, [zero] * steps, lr=1.0, weight_decay=0.0, noise=1.0) for steps in (1, 2))
    assert not torch.equal(once[0], once[1])  # one weight has not the noise of the other
    assert not torch.equal(twice[0] - once[0], once[0])
    assert not torch.equal(stepped(zero, [zero], lr=1.0, noise=1.0, seed=1)[0], once[0])
    assert torch.equal(torch.get_rng_state(), before)


def test_no_gradients_and_gradients_of_zero():
    parameter = nn.Parameter(torch.ones(2))
    optimizer = UPGD([parameter], noise=0.0, weight_decay=0.0)
    optimizer.step()
    parameter.grad = torch.zeros(2)
    optimizer.step()  # 0 / 0 in the authors' code
    assert torch.equal(parameter, torch.ones(2))


class WithUPGD(PlainModule):
    def configure_optimizers(self):
        return UPGD(self.parameters(), lr=0.1, noise=0.1)


def built():
    torch.manual_seed(0)
    return WithUPGD()


@pytest.mark.parametrize("epoch", [0, 2, 4])
def test_a_resumed_run_equals_the_uninterrupted_one_bit_for_bit(tmp_path, epoch):
    save = ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1, every_n_epochs=1, save_on_train_epoch_end=True)
    whole = fitted(save, module=built())
    resumed = fitted(module=built(), seed=99, ckpt_path=tmp_path / f"epoch={epoch}.ckpt")
    assert_same_weights(resumed, whole)


def test_an_optimizer_reset_drops_utilities():
    parameter = nn.Parameter(torch.ones(2))
    optimizer = UPGD([parameter])
    parameter.grad = torch.ones(2)
    optimizer.step()
    drop_state(optimizer)  # a warning would be an error
    assert not optimizer.state
    optimizer.step()
    assert optimizer.state[parameter]["step"] == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -1}, "`lr` must be at least 0, got -1"),
        ({"weight_decay": -1}, "`weight_decay` must be at least 0, got -1"),
        ({"noise": -1}, "`noise` must be at least 0, got -1"),
        ({"utility_decay": 1.0}, r"`utility_decay` must be in \[0, 1\), got 1.0"),
    ],
)
def test_arguments_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        UPGD([nn.Parameter(torch.ones(1))], **options)


class NothingRead(TorchDispatchMode):
    """Fails where a value of a tensor becomes a Python number, for which a program waits for a GPU."""

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        assert operator is not torch.ops.aten._local_scalar_dense.default
        return operator(*args, **(kwargs or {}))


@pytest.mark.parametrize("gradient", [0.0, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_step_reads_no_value(gradient, dtype):
    weights = [nn.Parameter(torch.ones(2, 3, dtype=dtype)), nn.Parameter(torch.ones(2))]
    optimizer = UPGD(weights)
    for weight in weights:
        weight.grad = torch.full_like(weight, gradient)
    with NothingRead():
        optimizer.step()
    assert all(weight.isfinite().all() for weight in weights)


@pytest.mark.slow(3)
def test_a_compiled_step_is_one_graph_and_the_same():
    weights, gradients = [torch.randn(shape) for shape in SHAPES], [torch.randn(shape) for shape in SHAPES]
    found = []
    for compiled in (False, True):
        torch.compiler.reset()
        parameters = [nn.Parameter(weight.clone()) for weight in weights]
        optimizer = UPGD(parameters, lr=0.1, noise=0.3)
        step = torch.compile(optimizer.step, backend="eager", fullgraph=True) if compiled else optimizer.step
        for _ in range(3):
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient.clone()
            step()
        found.append([parameter.detach() for parameter in parameters])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_loaded_utility_has_the_precision_of_its_weight(dtype):
    weights = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))]
    optimizer = UPGD(weights)
    weights[0].grad = torch.ones(3)  # the other has no state
    optimizer.step()
    saved = copy.deepcopy(optimizer.state_dict())
    other = UPGD([nn.Parameter(weight.detach().to(dtype)) for weight in weights])
    other.load_state_dict(saved)
    assert other.state_dict()["state"].keys() == {0}
    wide = torch.promote_types(dtype, torch.float32)
    utility = other.state_dict()["state"][0]["utility"]
    assert utility.dtype == wide
    assert torch.equal(utility, saved["state"][0]["utility"].to(wide))
