"""`shrink_and_perturb` and `dash` against the slow versions, their limits, and their errors."""

import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from tolerances import assert_near

from lightning_fire.functional import dash, shrink_and_perturb


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@given(st.floats(0, 1), st.one_of(st.none(), st.floats(0, 3)), st.integers(0, 1000))
def test_equals_the_slow_version(dtype, strength, perturb, seed):
    generator = torch.Generator().manual_seed(seed)
    weight, target = torch.randn(2, 4, 3, generator=generator).to(dtype)
    new = shrink_and_perturb(weight, target, strength, perturb)
    assert new.dtype == dtype
    assert_near(new, reference.shrink_and_perturb(weight, target, strength, perturb))


def test_by_hand():
    new = shrink_and_perturb(torch.tensor([1.0, -2.0, 0.0]), torch.tensor([0.5, 0.5, 0.5]), 0.6, perturb=0.1)
    torch.testing.assert_close(new, torch.tensor([0.45, -0.75, 0.05]))


def test_strengths_0_and_1_are_exact_and_inputs_are_not_modified():
    weight, target = torch.randn(2, 5)
    before = weight.clone(), target.clone()
    assert torch.equal(shrink_and_perturb(weight, target, 0.0), weight)
    assert torch.equal(shrink_and_perturb(weight, target, 1.0), target)
    assert torch.equal(weight, before[0])
    assert torch.equal(target, before[1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.zeros(2), torch.zeros(2), 1.5), r"`strength` must be in \[0, 1\], got 1.5"),
        ((torch.zeros(2), torch.zeros(2), 0.5, -1.0), "`perturb` must be at least 0, got -1.0"),
        ((torch.zeros(2), torch.zeros(3), 0.5), r"`target` must have the shape of `weight`, \(2,\), got \(3,\)"),
    ],
)
def test_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        shrink_and_perturb(*arguments)


@pytest.mark.parametrize("shape", [(7,), (5, 4), (4, 3, 3, 3), (4, 3, 5), (3, 2, 2, 2, 2), (6, 4, 1, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_dash_equals_the_slow_version(shape, dtype):
    weight, direction = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    for minimum in (0.0, 0.3, 1.0):
        new = dash(weight, direction, minimum)
        assert new.dtype == dtype
        assert_near(new, reference.dash(weight, direction, minimum))


def test_dash_of_a_channels_last_weight():
    """Published code wrote into a copy there: nothing shrank."""
    weight, direction = torch.randn(2, 4, 3, 3, 3)
    new = dash(weight.to(memory_format=torch.channels_last), direction, 0.3)
    assert_near(new, reference.dash(weight, direction, 0.3))
    assert not torch.equal(new, weight)


@given(st.floats(-30, 20), st.floats(0, 1))
def test_dash_depends_on_the_direction_only(power, minimum):
    weight, direction = torch.randn(2, 4, 3, 3, 3, generator=torch.Generator().manual_seed(1))
    assert_near(dash(weight, direction * 10.0**power, minimum), reference.dash(weight, direction, minimum))


def test_dash_of_aligned_opposite_and_zero_directions():
    weight = torch.randn(4, 3)
    torch.testing.assert_close(dash(weight, 5 * weight, 0.3), weight)  # aligned
    torch.testing.assert_close(dash(weight, -weight, 0.3), 0.3 * weight)  # opposite: shrinks by λ
    torch.testing.assert_close(dash(weight, torch.zeros(4, 3), 0.3), 0.3 * weight)  # no direction: shrinks by λ
    assert torch.equal(dash(torch.zeros(4, 3), weight, 0.3), torch.zeros(4, 3))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.zeros(2), torch.zeros(2), -0.1), r"`minimum` must be in \[0, 1\], got -0.1"),
        ((torch.zeros(2), torch.zeros(3), 0.5), r"`direction` must have the shape of `weight`, \(2,\), got \(3,\)"),
    ],
)
def test_dash_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        dash(*arguments)
