"""Shapes, limits and errors of single metrics."""

import math

import pytest
import torch

from lightning_fire.functional import as_matrices, dfi, dormancy_score
from lightning_fire.metrics import (
    DeviationFromIsometry,
    DormantFraction,
    EntropyRank,
    FeatureCovarianceShift,
    NormalizedDeviationFromIsometry,
    NormalizedSquaredFrobeniusError,
    SquaredFrobeniusError,
    SRank,
    StableRank,
)

RANKS = [SRank, StableRank, EntropyRank]


def test_deviation_takes_weights_of_any_shapes():
    """A mean over matrices: a convolution counts once for each kernel position."""
    linear, convolution = torch.randn(5, 3), torch.randn(4, 2, 3, 3)
    metric = DeviationFromIsometry()
    metric.update(linear)
    metric.update(as_matrices(convolution))
    expected = torch.cat([dfi(linear).view(1), dfi(as_matrices(convolution)).flatten()]).mean()
    torch.testing.assert_close(metric.compute().float(), expected)


def test_ratio_of_sums_is_not_the_mean_of_ratios():
    metric = NormalizedSquaredFrobeniusError()
    metric.update(torch.eye(2), torch.zeros(2, 2))
    metric.update(3 * torch.eye(2), 3 * torch.eye(2))
    assert metric.compute() == 2 / 20
    metric.reset()
    metric.update(torch.zeros(2, 2), torch.zeros(2, 2))
    assert metric.compute() == 0
    metric.update(torch.zeros(2, 2), torch.ones(2, 2))
    assert metric.compute() == math.inf


def test_dimensions_before_the_last_count_as_samples():
    places = torch.randn(6, 2, 5, 4).relu()
    for build in (*RANKS, DormantFraction):
        one, other = build(4), build(4)
        one.update(places)
        other.update(places.flatten(0, -2))
        assert one.compute() == other.compute()
    shift = FeatureCovarianceShift(4)
    shift.update(places, places.flip(-1))
    assert shift.compute() < 1e-7  # a permutation of features


def test_dormant_fraction_weighs_samples_not_batches():
    activation = torch.rand(10, 6) ** 4
    metric = DormantFraction(6, threshold=0.5)
    for batch in activation.split([1, 9]):
        metric.update(batch)
    expected = (dormancy_score(activation.mean(0)) <= 0.5).float().mean()
    torch.testing.assert_close(metric.compute().float(), expected)


def test_ranks_of_zeros_and_of_what_is_not_finite():
    for build in RANKS:
        metric = build(3)
        metric.update(torch.zeros(5, 3))
        assert metric.compute() == 0
        metric.update(torch.tensor([[1.0, torch.inf, 0.0]]))
        assert metric.compute().isnan()
        metric.reset()
        metric.update(torch.eye(3))
        assert metric.compute() == pytest.approx(3)


def test_more_features_than_samples():
    features = torch.randn(5, 40)
    for build in RANKS:
        metric = build(40)
        metric.update(features)
        assert 1 <= metric.compute() <= 5 + 1e-9
    shift = FeatureCovarianceShift(40)
    shift.update(features, 2 * features)
    assert shift.compute() < 1e-7


@pytest.mark.filterwarnings("ignore:The ``compute`` method of metric")
def test_nothing_seen():
    assert DeviationFromIsometry().compute().isnan()
    assert NormalizedDeviationFromIsometry().compute().isnan()
    assert SquaredFrobeniusError().compute() == 0
    assert [build(3).compute() for build in RANKS] == [0, 0, 0]
    assert DormantFraction(3).compute() == 1  # none of them did anything
    assert FeatureCovarianceShift(3).compute() == 0


def test_errors_of_arguments():
    for build in (*RANKS, FeatureCovarianceShift, DormantFraction):
        for value in (0, -1, 2.0, True, None):
            with pytest.raises(ValueError, match=rf"`num_\w+` must be (a whole number of )?at least 1, got {value}"):
                build(value)
    with pytest.raises(ValueError, match="`num_features_after` must be at least 1, got 0"):
        FeatureCovarianceShift(3, 0)
    for delta in (-0.5, 1):
        with pytest.raises(ValueError, match=f"`delta` must be at least 0 and below 1, got {delta}"):
            SRank(3, delta)
    with pytest.raises(ValueError, match="`threshold` must be at least 0, got -1"):
        DormantFraction(3, -1)
    with pytest.raises(ValueError, match="Unexpected keyword arguments: `num_units`"):
        StableRank(3, num_units=3)


def test_errors_of_inputs():
    for metric, name in ((DeviationFromIsometry(), "matrix"), (StableRank(3), "features"), (SRank(3), "features")):
        with pytest.raises(TypeError, match=rf"`{name}` must be of a real floating dtype, got torch.int64"):
            metric.update(torch.ones(2, 3, dtype=torch.int64))
        with pytest.raises(ValueError, match=rf"`{name}` must have at least 2 dimensions, got shape \(3,\)"):
            metric.update(torch.ones(3))
    with pytest.raises(ValueError, match=r"`features` must have 3 entries in its last dimension, got \(3, 4\)"):
        EntropyRank(3).update(torch.ones(3, 4))
    with pytest.raises(ValueError, match=r"`activation` must have 3 entries in its last dimension, got \(2, 3, 4, 4\)"):
        DormantFraction(3).update(torch.ones(2, 3, 4, 4))
    for metric in (SquaredFrobeniusError(), NormalizedSquaredFrobeniusError()):
        with pytest.raises(ValueError, match=r"must have one shape, got \(2, 3\) and \(3, 2\)"):
            metric.update(torch.ones(2, 3), torch.ones(3, 2))
    shift = FeatureCovarianceShift(3, 2)
    with pytest.raises(ValueError, match=r"features of the same samples, got \(5, 3\) and \(4, 2\)"):
        shift.update(torch.ones(5, 3), torch.ones(4, 2))
    with pytest.raises(ValueError, match=r"`after` must have 2 entries in its last dimension, got \(5, 3\)"):
        shift.update(torch.ones(5, 3), torch.ones(5, 3))
    assert not any(getattr(shift, name).any() for name in ("gram_before", "gram_after", "cross"))
