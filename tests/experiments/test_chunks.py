"""The number of epochs until a value is reached: examples, and comparison with a slow version."""

import math

import numpy as np
import pytest
from history import HISTORY
from hypothesis import given
from hypothesis import strategies as st

from lightning_fire.experiments.chunks import ChunkedRun, Metric

curves = st.lists(st.one_of(st.floats(0, 1), st.just(math.nan)), max_size=8)


def epochs_to(target, values, mode="max"):
    return ChunkedRun(HISTORY, Metric(mode=mode)).epochs_to(target, np.array(values))


@given(curves, st.floats(0, 1))
def test_epochs_equal_the_slow_version(curve, target):
    expected = next((float(epoch) for epoch, value in enumerate(curve, start=1) if value >= target), math.inf)
    assert epochs_to(target, curve) == expected
    assert epochs_to(-target, [-value for value in curve], mode="min") == expected


@given(curves, st.floats(0, 1), st.floats(0, 1))
def test_a_higher_accuracy_takes_at_least_as_long(curve, one, other):
    low, high = sorted((one, other))
    assert epochs_to(low, curve) <= epochs_to(high, curve)


@pytest.mark.parametrize(
    ("target", "values", "expected"),
    [
        (0.5, [0.1, 0.5, 0.4, 0.9], 2),  # a later fall does not matter
        (0.5, [0.9], 1),
        (0.4, [math.nan, 0.4], 2),
        (0.5, [0.1, 0.2], math.inf),
        (0.0, [], math.inf),
        (math.nan, [1.0, 1.0], math.inf),
    ],
)
def test_epochs_to_a_value(target, values, expected):
    assert epochs_to(target, values) == expected
