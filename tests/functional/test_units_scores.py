"""Scores of hidden units, by hand and against the slow version."""

import reference
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_fire.functional import contribution_utility, dormancy_score, least_useful


@given(st.integers(1, 9), st.integers(1, 9), st.floats(0, 2))
def test_dormant_units_are_those_of_the_slow_version(samples, units, threshold):
    activations = torch.randn(samples, units).relu()
    scores = dormancy_score(activations.abs().mean(0))
    found = (scores <= threshold).nonzero().flatten().tolist()
    near = {int(unit) for unit in ((scores - threshold).abs() < 1e-5).nonzero()}
    assert set(found) ^ set(reference.dormant(activations, threshold)) <= near


def test_a_layer_that_does_nothing_is_dormant_as_a_whole():
    assert torch.equal(dormancy_score(torch.zeros(3)), torch.zeros(3))


def test_scores_do_not_know_the_scale_of_a_layer():
    activity = torch.tensor([0.0, 1.0, 3.0])
    torch.testing.assert_close(dormancy_score(1e-20 * activity), dormancy_score(activity))


def test_utility_and_choice_by_hand():
    utility = contribution_utility(torch.tensor([1.0, 2.0, 0.5]), torch.tensor([3.0, 0.0, 4.0]))
    assert utility.tolist() == [3.0, 0.0, 2.0]
    assert least_useful(utility, torch.tensor([True, True, True]), 2).tolist() == [1, 2]
    assert least_useful(utility, torch.tensor([True, False, True]), 3).tolist() == [2, 0]
    assert least_useful(utility, torch.tensor([False, False, False]), 1).tolist() == []
    assert least_useful(torch.zeros(3), torch.tensor([True, True, True]), 2).tolist() == [0, 1]
