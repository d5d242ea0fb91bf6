"""Penalties against the slow versions and against autograd."""

import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_fire.functional import (
    dfi,
    l2_init_gradient,
    l2_init_penalty,
    parseval_gradient,
    parseval_penalty,
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


@given(st.integers(0, 1000))
def test_the_other_gradients_equal_autograd(seed):
    generator = torch.Generator().manual_seed(seed)
    weight, initial = torch.randn(2, 3, 4, generator=generator, dtype=torch.float64)
    weight.requires_grad_()
    (expected,) = torch.autograd.grad((weight - initial).pow(2).sum(), weight)
    torch.testing.assert_close(l2_init_gradient(weight.detach(), initial), expected)
    (expected,) = torch.autograd.grad((weight**2 - 1).pow(2).sum(), weight)
    torch.testing.assert_close(unit_scale_gradient(weight.detach()), expected)


def test_the_others_by_hand():
    assert l2_init_penalty(torch.tensor([3.0, 0.0]), torch.tensor([1.0, 1.0])) == 5
    assert unit_scale_penalty(torch.tensor([2.0, -1.0, 0.0])) == 10


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
