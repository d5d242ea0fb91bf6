"""`shrink_and_perturb` against the slow version, its limits, and its errors."""

import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from tolerances import assert_near

from lightning_fire.functional import shrink_and_perturb


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


def test_the_ends_are_exact_and_the_inputs_stay():
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
