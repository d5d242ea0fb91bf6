"""`project_to_norm` against the slow version, and what a norm means before a normalization layer."""

import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from tolerances import assert_near
from torch import nn

from lightning_fire.functional import project_to_norm
from lightning_fire.functional.projection import frobenius_norm


@given(st.integers(1, 6), st.integers(1, 6), st.floats(0, 100))
def test_it_is_the_slow_version(rows, columns, norm):
    weight = torch.randn(rows, columns)
    assert_near(project_to_norm(weight, norm), reference.project_to_norm(weight, norm).float())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [3e-39, 1e-15, 1.0, 1e15, 3e25, 5e36])
def test_the_norm_is_that_one_and_the_direction_stays(dtype, scale):
    weight = (scale * torch.randn(8, 4, 3, 3)).to(dtype)
    projected = project_to_norm(weight, 2.0)
    assert projected.dtype == dtype
    assert projected.double().norm().item() == pytest.approx(2.0, rel=1e-2 if dtype == torch.bfloat16 else 1e-6)
    directions = [value.double() / value.double().norm() for value in (projected, weight)]
    torch.testing.assert_close(*directions, rtol=0, atol=1e-2 if dtype == torch.bfloat16 else 1e-6)
    assert frobenius_norm(weight).item() == pytest.approx(weight.double().norm().item(), rel=1e-6)


def test_zero_stays_zero():
    assert torch.equal(project_to_norm(torch.zeros(2, 2), 1.0), torch.zeros(2, 2))


@given(st.floats(0.1, 10))
def test_before_a_normalisation_only_the_gradient_depends_on_the_norm(scale):
    """Paper, section 2: f(c·W) = f(W), and the gradient by c·W is 1 / c of that by W."""
    torch.manual_seed(0)
    x, weight = torch.randn(5, 4, dtype=torch.float64), torch.randn(6, 4, dtype=torch.float64)
    outputs, gradients = [], []
    for factor in (1.0, scale):
        scaled = (factor * weight).requires_grad_()
        out = nn.functional.layer_norm(x @ scaled.T, (6,), eps=0.0).relu()
        outputs.append(out.detach())
        gradients += torch.autograd.grad(out.square().sum() + out[0, 0], scaled)
    torch.testing.assert_close(outputs[1], outputs[0])
    torch.testing.assert_close(scale * gradients[1], gradients[0])
