"""The choice of the least useful weights, by hand and against the slow version."""

import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_fire.functional import below_mean, gradient_utility, lowest

SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=4)


@given(SHAPES, st.floats(0, 3), st.booleans())
def test_weights_below_the_mean_are_those_of_the_slow_version(shape, factor, by_gradient):
    weight, gradient = torch.randn(2, *shape, dtype=torch.float64)
    utility = gradient_utility(weight, gradient) if by_gradient else weight.abs()
    found = below_mean(utility, factor)
    assert found.shape == weight.shape
    near = {int(i) for i in ((utility - factor * utility.mean()).abs() < 1e-12).flatten().nonzero()}
    expected = reference.least_useful_weights(weight, gradient if by_gradient else None, factor)
    assert set(found.flatten().nonzero().flatten().tolist()) ^ expected <= near


@given(SHAPES, st.integers(0, 9))
def test_the_lowest_are_those_of_the_slow_version(shape, number):
    weight, gradient = torch.randn(2, *shape)
    found = lowest(gradient_utility(weight, gradient), number)
    expected = reference.least_useful_weights(weight, gradient, 0.0, number)
    assert set(found.flatten().nonzero().flatten().tolist()) == expected
    assert int(found.sum()) == min(number, weight.numel())


@given(SHAPES, st.floats(0, 3), st.sampled_from([2.0**-60, 0.5, 2.0**60]))
def test_the_scale_of_the_gradient_does_not_matter(shape, factor, scale):
    weight, gradient = torch.randn(2, *shape)
    one, other = (gradient_utility(weight, each) for each in (gradient, scale * gradient))
    assert torch.equal(below_mean(one, factor), below_mean(other, factor))
    assert torch.equal(lowest(one, 2), lowest(other, 2))


def test_zeros_and_ties():
    assert below_mean(torch.zeros(3), 0.1).all()  # a parameter that the loss does not depend on
    assert below_mean(torch.tensor([0.0, 1.0]), 0).tolist() == [True, False]
    assert lowest(torch.ones(4), 2).tolist() == [True, True, False, False]


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_none_where_something_is_not_finite(broken):
    utility = torch.tensor([0.0, 1.0, broken])
    assert not below_mean(utility, 1.0).any() and not lowest(utility, 2).any()


def test_half_precision_is_computed_in_float32():
    weight, gradient = torch.tensor([1e-4, 2e-4]).half(), torch.tensor([1e-4, 1e-4]).half()
    assert gradient_utility(weight, gradient).min() > 0  # 1e-8 is 0 in float16


def test_errors():
    with pytest.raises(ValueError, match="`factor` must be at least 0, got -1"):
        below_mean(torch.ones(2), -1)
    with pytest.raises(ValueError, match="`number` must be at least 0, got -1"):
        lowest(torch.ones(2), -1)
