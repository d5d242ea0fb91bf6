"""`functional.features`: slow versions, closed forms, invariants, the paper's theorem, errors."""

import math

import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_fire.functional import (
    feature_covariance_shift,
    feature_covariance_shift_of,
    sfe,
)

sizes = st.integers(1, 12)
seeds = st.integers(0, 2**16)


def random_matrix(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@settings(max_examples=80, deadline=None)
@given(sizes, sizes, sizes, seeds, st.sampled_from([1e-100, 1.0, 1e100]))
def test_shift_equals_the_slow_version(samples, before_features, after_features, seed, scale):
    """With fewer samples than features and with more; the feature dimensions differ."""
    before = random_matrix(samples, before_features, seed=seed)
    after = random_matrix(samples, after_features, seed=seed + 1)
    expected = reference.feature_covariance_shift(before, after)
    torch.testing.assert_close(feature_covariance_shift(before, scale * after), expected, atol=3e-8, rtol=1e-9)


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 30), sizes, sizes, seeds)
def test_shift_is_a_distance_invariant_to_rotation_and_scale(samples, m, n, seed):
    one, other = random_matrix(samples, m, seed=seed), random_matrix(samples, n, seed=seed + 1)
    third = random_matrix(samples, 2, seed=seed + 2)
    shift = feature_covariance_shift(one, other)
    assert 0 <= shift <= math.sqrt(2) + 1e-12
    torch.testing.assert_close(feature_covariance_shift(other, one), shift, atol=3e-8, rtol=1e-9)
    assert shift <= feature_covariance_shift(one, third) + feature_covariance_shift(third, other) + 1e-7
    rotation = torch.linalg.qr(random_matrix(m, m, seed=seed + 3))[0]
    assert feature_covariance_shift(one, -3 * one @ rotation) < 1e-7
    torch.testing.assert_close(feature_covariance_shift(one @ rotation, 7 * other), shift, atol=3e-8, rtol=1e-9)


def test_closed_forms():
    ones = torch.ones(4, 1)
    alternating = torch.tensor([[1.0], [-1.0], [1.0], [-1.0]])
    torch.testing.assert_close(feature_covariance_shift(ones, alternating), torch.tensor(2**0.5))  # orthogonal
    torch.testing.assert_close(feature_covariance_shift(torch.eye(4), ones), torch.tensor(0.75**0.5))  # I/4, 11ᵀ/4
    assert feature_covariance_shift(ones, 5 * ones) == 0


def test_the_covariance_of_zero_features_counts_as_zero():
    for features in (2, 9):
        assert feature_covariance_shift(torch.zeros(5, features), torch.zeros(5, features)) == 0
        torch.testing.assert_close(
            feature_covariance_shift(torch.ones(5, features), torch.zeros(5, features)).item(), 1.0
        )
    assert feature_covariance_shift(torch.zeros(0, 3), torch.zeros(0, 2)) == 0


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 3), st.integers(1, 6), seeds, st.floats(0, 2))
def test_sfe_bounds_the_shift(depth, width, seed, noise):
    """Paper, theorem "SFE bounds output feature covariance", for a ReLU network."""
    inputs = random_matrix(20, width, seed=seed)
    old = random_matrix(depth, width, width, seed=seed + 1)
    new = old + noise * random_matrix(depth, width, width, seed=seed + 2)
    outputs = []
    for weights in (old, new):
        hidden = inputs
        for weight in weights:
            hidden = (hidden @ weight).relu()
        outputs.append(hidden)
    least = min(output.norm() for output in outputs)
    if least > 0:
        norms = torch.maximum(*(torch.linalg.matrix_norm(weights, ord=2) for weights in (old, new)))
        bound = 16 * inputs.norm() ** 2 / least**2 * norms.prod() ** 2 * (1 / norms**2).sum() * sfe(old, new).sum()
        assert feature_covariance_shift(*outputs) ** 2 <= bound + 1e-12


def test_sums_over_batches_give_the_shift():
    before, after = random_matrix(50, 4), random_matrix(50, 6, seed=1)
    grams = [0.0, 0.0, 0.0]
    for f, g in zip(before.split(7), after.split(7), strict=True):
        grams = [a + b for a, b in zip(grams, (f.mT @ f, g.mT @ g, f.mT @ g), strict=True)]
    torch.testing.assert_close(feature_covariance_shift_of(*grams), feature_covariance_shift(before, after))


@pytest.mark.parametrize("samples", [3, 20])
def test_leading_dimensions_are_a_batch(samples):
    before, after = random_matrix(2, 5, samples, 4), random_matrix(2, 5, samples, 6)
    shifts = feature_covariance_shift(before, after)
    assert shifts.shape == (2, 5)
    torch.testing.assert_close(shifts[1, 3], feature_covariance_shift(before[1, 3], after[1, 3]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("samples", [3, 20])
def test_result_is_float32_at_least(dtype, samples):
    before, after = random_matrix(samples, 4).to(dtype), random_matrix(samples, 4, seed=1).to(dtype)
    assert feature_covariance_shift(before, after).dtype == torch.float32
    assert feature_covariance_shift(before, after.double()).dtype == torch.float64
    expected = reference.feature_covariance_shift(before, after).float()
    torch.testing.assert_close(feature_covariance_shift(before, after), expected)


def test_nan_stays_nan():
    features = torch.full((4, 2), torch.nan)
    assert feature_covariance_shift(features, torch.ones(4, 2)).isnan()
    assert feature_covariance_shift(features, torch.ones(4, 5)).isnan()


def test_errors():
    with pytest.raises(ValueError, match=r"features of the same samples, got \(3, 2\) and \(4, 2\)"):
        feature_covariance_shift(torch.ones(3, 2), torch.ones(4, 2))
    with pytest.raises(TypeError, match=r"`after` must be of a real floating dtype, got torch.bool"):
        feature_covariance_shift(torch.ones(3, 2), torch.ones(3, 2).bool())
    with pytest.raises(ValueError, match=r"`before` must have at least 2 dimensions, got shape \(3,\)"):
        feature_covariance_shift(torch.ones(3), torch.ones(3))
