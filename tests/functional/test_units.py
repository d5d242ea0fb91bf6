"""Scores of hidden units, by hand and against the slow version."""

import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_fire.functional import (
    NEVER,
    contribution_utility,
    dfi,
    dormancy_score,
    dormant,
    dormant_fraction,
    inter_firing_threshold,
    least_useful,
)


@given(st.integers(1, 9), st.integers(1, 9), st.floats(0, 2))
def test_dormant_units_are_those_of_the_slow_version(samples, units, threshold):
    activations = torch.randn(samples, units).relu()
    scores = dormancy_score(activations.abs().mean(0))
    found = dormant(activations.abs().mean(0), threshold).nonzero().flatten().tolist()
    near = {int(unit) for unit in ((scores - threshold).abs() < 1e-5).nonzero()}
    assert set(found) ^ set(reference.dormant(activations, threshold)) <= near


def test_all_units_of_an_inactive_layer_are_dormant():
    assert torch.equal(dormancy_score(torch.zeros(3)), torch.zeros(3))


def test_scores_are_scale_invariant():
    activity = torch.tensor([0.0, 1.0, 3.0])
    torch.testing.assert_close(dormancy_score(1e-20 * activity), dormancy_score(activity))


def test_leading_dimensions_are_a_batch_of_layers():
    activity = torch.tensor([[0.0, 1.0, 3.0, 4.0], [0.0, 0.0, 0.0, 0.0]])
    assert dormancy_score(activity).tolist() == [[0.0, 0.5, 1.5, 2.0], [0.0] * 4]
    assert dormant(activity, 0.5).tolist() == [[True, True, False, False], [True] * 4]
    assert dormant_fraction(activity, 0.5).tolist() == [0.5, 1.0]


def test_dormant_fraction_by_hand():
    assert dormant_fraction(torch.tensor([0.0, 1.0, 3.0, 4.0]), 0) == 0.25  # at most, not below
    assert dormant_fraction(torch.tensor([1.0, 1.0, 1.0]), 1.0) == 1
    assert dormant_fraction(torch.tensor([1.0, torch.nan]), 0.1).isnan()
    assert dormant_fraction(torch.tensor([1.0, torch.inf]), 0.1).isnan()
    with pytest.raises(ValueError, match=r"`threshold` must be at least 0, got -0\.1"):
        dormant(torch.ones(3), -0.1)


@given(st.integers(1, 6), st.integers(0, 2**16), st.floats(0, 0.3))
def test_dfi_bounds_the_scores(units, seed, noise):
    """Paper, theorem "Minimizing DfI increases neuron activity score": E|relu⟨z, w⟩| is a multiple of ‖w‖."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.linalg.qr(torch.randn(8, units, generator=generator, dtype=torch.float64))[0]
    weight = weight + noise / units * torch.randn(8, units, generator=generator, dtype=torch.float64)
    epsilon = dfi(weight).sqrt()
    if epsilon < 1:
        scores, bound = dormancy_score(weight.norm(dim=0)), ((1 - epsilon) / (1 + epsilon)).sqrt()
        assert bound - 1e-12 <= scores.min() <= scores.max() <= 1 / bound + 1e-12


def test_utility_and_choice_by_hand():
    utility = contribution_utility(torch.tensor([1.0, 2.0, 0.5]), torch.tensor([3.0, 0.0, 4.0]))
    assert utility.tolist() == [3.0, 0.0, 2.0]
    assert least_useful(utility, torch.tensor([True, True, True]), 2).tolist() == [1, 2]
    assert least_useful(utility, torch.tensor([True, False, True]), 3).tolist() == [2, 0]
    assert least_useful(utility, torch.tensor([False, False, False]), 1).tolist() == []
    assert least_useful(torch.zeros(3), torch.tensor([True, True, True]), 2).tolist() == [0, 1]


@given(
    st.lists(st.lists(st.one_of(st.none(), st.integers(0, 5)), min_size=4, max_size=4), min_size=1, max_size=5),
    st.sampled_from([0.02, 0.25, 0.5, 0.9]),
)
def test_inter_firing_thresholds_are_those_of_the_definition(units, rejection):
    """The longest interval that is not yet improbable, by trying each one."""
    intervals = torch.tensor([[NEVER if interval is None else 10 * interval for interval in unit] for unit in units])
    found = inter_firing_threshold(intervals, torch.full((len(units),), 25), rejection, expansion=3.0)
    for unit, threshold in zip(units, found.tolist(), strict=True):
        seen = [10 * interval for interval in unit if interval is not None]
        likely = [a for a in range(60) if seen and sum(s >= a for s in seen) / len(seen) > rejection]
        assert threshold == (25 if not seen else likely[-1] if likely[-1] <= 25 else 75)


def test_a_quantile_of_fifty_intervals_does_not_suffer_from_rounding():
    """0.98 · 50 is a little over 49 in floating point."""
    intervals = torch.tensor([[1] * 49 + [7]])
    assert inter_firing_threshold(intervals, torch.tensor([100]), rejection=0.02).tolist() == [1]
    assert inter_firing_threshold(intervals, torch.tensor([100]), rejection=0.019).tolist() == [7]


def test_a_layer_with_a_nan_has_zero_dormant_units():
    """A loss that has diverged must not make ReDo reset the whole layer."""
    assert not dormant(torch.tensor([0.0, float("nan"), 1.0]), 0.5).any()
