"""Penalties against the slow versions and against autograd."""

import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_fire.functional import (
    bias_gradient,
    bias_penalty,
    dfi,
    l2_init_gradient,
    l2_init_penalty,
    parseval_gradient,
    parseval_penalty,
    power_iteration,
    spectral_gradient,
    spectral_penalty,
    unit_scale_gradient,
    unit_scale_penalty,
)

SHAPES = [(4, 6), (6, 4), (5, 5), (1, 3), (4, 3, 3, 3), (40, 2, 3, 3), (6, 2, 5)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scale", [1.0, 2.0])
@pytest.mark.parametrize("groups", [1, 2])
def test_parseval_and_its_gradient_equal_the_slow_version_and_autograd(shape, scale, groups):
    if shape[0] % groups:
        pytest.skip("groups do not divide the outputs")
    weight = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    slow = reference.parseval_penalty(weight, scale, groups)
    torch.testing.assert_close(parseval_penalty(weight.detach(), scale, groups), slow.detach())
    (expected,) = torch.autograd.grad(slow, weight)
    torch.testing.assert_close(parseval_gradient(weight.detach(), scale, groups), expected)


def test_parseval_by_hand():
    weight = torch.tensor([[1.0, 1.0], [0.0, 1.0]])  # WWᵀ = [[2, 1], [1, 1]]
    assert parseval_penalty(weight) == 1 + 1 + 1
    assert parseval_penalty(weight, scale=2.0) == 1 + 1 + 1
    assert torch.equal(parseval_gradient(weight), 4 * torch.tensor([[1.0, 1.0], [1.0, 0.0]]) @ weight)


@given(st.integers(1, 8), st.integers(1, 8))
def test_parseval_is_the_papers_dfi_of_the_transpose(rows, columns):
    weight = torch.randn(rows, columns, dtype=torch.float64)
    torch.testing.assert_close(parseval_penalty(weight), dfi(weight.mT))


def test_a_channels_last_weight_has_the_gradient_of_a_contiguous_one():
    weight = torch.randn(6, 4, 3, 3)
    other = weight.to(memory_format=torch.channels_last)
    torch.testing.assert_close(parseval_gradient(other), parseval_gradient(weight))


def converged(weight, groups=1):
    vector = torch.nn.functional.normalize(torch.randn(groups, weight[0].numel(), dtype=weight.dtype))
    for _ in range(3000):
        vector = power_iteration(weight, vector, groups)
    return vector


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("groups", [1, 2])
def test_spectral_and_its_gradient_equal_the_slow_version_and_autograd(shape, groups):
    if shape[0] % groups:
        pytest.skip("groups do not divide the outputs")
    weight = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    slow = reference.spectral_penalty(weight, groups)
    vector = converged(weight.detach(), groups)
    torch.testing.assert_close(spectral_penalty(weight.detach(), vector, groups), slow.detach())
    (expected,) = torch.autograd.grad(slow, weight)
    torch.testing.assert_close(spectral_gradient(weight.detach(), vector, groups), expected)


@given(st.integers(1, 8), st.integers(1, 8), st.integers(0, 1000))
def test_a_power_iteration_never_lowers_the_estimate_and_never_passes_the_largest_singular_value(rows, columns, seed):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    vector = torch.nn.functional.normalize(torch.randn(1, columns, generator=generator, dtype=torch.float64))
    largest = torch.linalg.matrix_norm(weight, 2)
    for _ in range(4):
        following = power_iteration(weight, vector)
        before, after = (torch.linalg.vector_norm(weight @ v[0]) for v in (vector, following))
        assert before * (1 - 1e-12) <= after <= largest * (1 + 1e-12)
        vector = following


@pytest.mark.parametrize("value", [0.0, float("nan")])
def test_a_power_iteration_keeps_the_vector_if_the_product_is_zero(value):
    vector = torch.tensor([[0.6, 0.8]])
    assert torch.equal(power_iteration(torch.full((3, 2), value), vector), vector)


def test_half_precision_is_computed_in_float32():
    weight = torch.randn(6, 4).to(torch.bfloat16)
    vector = converged(weight.float())
    for function in (spectral_penalty, spectral_gradient, power_iteration):
        assert function(weight, vector).dtype == torch.float32
        torch.testing.assert_close(function(weight, vector), function(weight.float(), vector))


@given(st.integers(0, 1000))
def test_the_other_gradients_equal_autograd(seed):
    generator = torch.Generator().manual_seed(seed)
    weight, initial = torch.randn(2, 3, 4, generator=generator, dtype=torch.float64)
    weight.requires_grad_()
    (expected,) = torch.autograd.grad((weight - initial).pow(2).sum(), weight)
    torch.testing.assert_close(l2_init_gradient(weight.detach(), initial), expected)
    (expected,) = torch.autograd.grad((weight**2 - 1).pow(2).sum(), weight)
    torch.testing.assert_close(unit_scale_gradient(weight.detach()), expected)
    (expected,) = torch.autograd.grad(weight.norm() ** 4, weight)
    torch.testing.assert_close(bias_gradient(weight.detach()), expected)


def test_the_others_by_hand():
    assert l2_init_penalty(torch.tensor([3.0, 0.0]), torch.tensor([1.0, 1.0])) == 5
    assert unit_scale_penalty(torch.tensor([2.0, -1.0, 0.0])) == 10
    assert bias_penalty(torch.tensor([1.0, -1.0, 1.0])) == 9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.zeros(3),), r"`weight` must have at least 2 dimensions, got shape \(3,\)"),
        ((torch.zeros(3, 3), 0.0), "`scale` must be above 0, got 0.0"),
        ((torch.zeros(3, 3), 1.0, 2), "`groups` must divide the 3 outputs of `weight`, got 2"),
    ],
)
def test_errors(arguments, message):
    for function in (parseval_penalty, parseval_gradient):
        with pytest.raises(ValueError, match=message):
            function(*arguments)


def test_spectral_needs_a_matrix():
    with pytest.raises(ValueError, match=r"`weight` must have at least 2 dimensions, got shape \(3,\)"):
        spectral_penalty(torch.zeros(3), torch.ones(1, 1))
    with pytest.raises(ValueError, match="`groups` must divide the 3 outputs of `weight`, got 2"):
        power_iteration(torch.zeros(3, 3), torch.ones(2, 3), groups=2)
