"""`functional.recovery`: by hand, against the slow version, errors."""

import math

import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_fire.functional import accuracy_drop, recovery_time

curves = st.lists(st.floats(0, 1, width=32), max_size=8)


@given(curves, st.floats(0, 1, width=32))
def test_recovery_time_equals_the_slow_version(curve, target):
    accuracy = torch.tensor(curve, dtype=torch.float32)
    found = recovery_time(accuracy, target)
    assert found == recovery_time(accuracy, torch.tensor(target)) == reference.recovery_time(curve, target)


@given(curves, st.floats(0, 1, width=32), st.floats(0, 1, width=32))
def test_a_higher_reference_takes_no_less_time(curve, low, high):
    low, high = sorted((low, high))
    accuracy = torch.tensor(curve)
    assert recovery_time(accuracy, low) <= recovery_time(accuracy, high)


def test_by_hand():
    assert recovery_time(torch.tensor([0.1, 0.5, 0.4, 0.9]), 0.5) == 2  # to fall again does not matter
    assert recovery_time(torch.tensor([0.9]), 0.5) == 1
    assert recovery_time(torch.tensor([torch.nan, 0.4]), 0.4) == 2
    assert recovery_time(torch.tensor([0.1, 0.2]), 0.5) == math.inf
    assert recovery_time(torch.zeros(0), 0.0) == math.inf
    torch.testing.assert_close(
        accuracy_drop(torch.tensor([0.8, 0.3]), torch.tensor([0.1, 0.4])), torch.tensor([0.7, -0.1])
    )


def test_a_reference_for_each_curve():
    accuracy = torch.tensor([[[0.1, 0.6], [0.3, 0.6]], [[0.1, 0.2], [0.5, 0.6]]])
    reference_accuracy = torch.tensor([[0.5, 0.3], [0.5, 0.55]])
    assert recovery_time(accuracy, reference_accuracy).tolist() == [[2, 1], [math.inf, 2]]
    assert recovery_time(accuracy.half(), 0.5).dtype == torch.float32


def test_errors():
    with pytest.raises(ValueError, match="`accuracy` must have at least 1 dimension, the epochs"):
        recovery_time(torch.tensor(0.5), 0.5)
    with pytest.raises(ValueError, match=r"`reference` must be a number or of shape \(2,\), got \(3,\)"):
        recovery_time(torch.zeros(2, 3), torch.zeros(3))
    with pytest.raises(ValueError, match=r"must have one shape, got \(2,\) and \(3,\)"):
        accuracy_drop(torch.zeros(2), torch.zeros(3))
