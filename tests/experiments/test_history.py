"""The number of epochs until an accuracy is reached: by hand, against the slow version."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lightning_fire.experiments.history import epochs_to

curves = st.lists(st.one_of(st.floats(0, 1), st.just(math.nan)), max_size=8)


@given(curves, st.floats(0, 1))
def test_epochs_equal_the_slow_version(curve, target):
    expected = next((float(epoch) for epoch, value in enumerate(curve, start=1) if value >= target), math.inf)
    assert epochs_to(target, np.array(curve)) == expected


@given(curves, st.floats(0, 1), st.floats(0, 1))
def test_a_higher_accuracy_takes_at_least_as_long(curve, one, other):
    low, high = sorted((one, other))
    assert epochs_to(low, np.array(curve)) <= epochs_to(high, np.array(curve))


def test_epochs_by_hand():
    assert epochs_to(0.5, np.array([0.1, 0.5, 0.4, 0.9])) == 2  # a later fall does not matter
    assert epochs_to(0.5, np.array([0.9])) == 1
    assert epochs_to(0.4, np.array([math.nan, 0.4])) == 2
    assert epochs_to(0.5, np.array([0.1, 0.2])) == math.inf
    assert epochs_to(0.0, np.zeros(0)) == math.inf
    assert epochs_to(math.nan, np.ones(3)) == math.inf
