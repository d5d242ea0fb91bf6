"""The paper's theorems on one layer: by hand, on random layers, and where their assumptions fail."""

import math

import pytest
import slow_bounds as slow
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_fire.functional import (
    activity_score_bounds,
    dfi,
    dfi_normalized,
    dfi_without_dormancy,
    fire,
    polar,
    srank_bound,
)

sizes = st.integers(1, 10)
seeds = st.integers(0, 2**16)
deltas = st.sampled_from([0.01, 0.1, 0.5, 0.9])


def near_isometry(out: int, inputs: int, seed: int, deviation: float) -> torch.Tensor:
    """A weight `(out, in)` with ‖WWᵀ − I‖_F = `deviation` < 1, in a random direction."""
    generator = torch.Generator().manual_seed(seed)
    frame = polar(torch.randn(out, inputs, generator=generator, dtype=torch.float64))
    noise = torch.randn(out, out, generator=generator, dtype=torch.float64)
    noise = noise + noise.T
    values, vectors = torch.linalg.eigh(torch.eye(out).double() + deviation * noise / noise.norm())
    return vectors @ torch.diag(values.sqrt()) @ vectors.T @ frame


def smallest_dfi(weight: torch.Tensor) -> torch.Tensor:
    """Over all scales of the weight, see the module's docstring."""
    x = dfi_normalized(weight)
    return len(weight) * x / (1 + x)


@settings(max_examples=30, deadline=None)
@given(sizes, sizes, seeds, st.floats(0.0, 0.99))
def test_smallest_dfi_over_all_scales(out, more, seed, deviation):
    """At the scale where the derivative of Σ(s²σ² − 1)² is 0; a little off it the DfI is larger."""
    weight = near_isometry(out, out + more, seed, deviation)
    squares = torch.linalg.svdvals(weight).square()
    best = weight * (squares.sum() / squares.square().sum()).sqrt()
    torch.testing.assert_close(dfi(best.mT), smallest_dfi(weight), atol=1e-12, rtol=1e-9)
    assert min(dfi(0.99 * best.mT), dfi(1.01 * best.mT)) > dfi(best.mT)


@settings(max_examples=30, deadline=None)
@given(sizes, sizes, seeds)
def test_dfi_of_the_theorems(out, inputs, seed):
    weight = torch.randn(out, inputs, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    gram = weight @ weight.mT - torch.eye(out).double()
    torch.testing.assert_close(dfi(weight.mT), gram.square().sum())
    torch.testing.assert_close(dfi(weight.mT), dfi(weight) + out - inputs)
    if out > inputs:
        assert dfi(weight.mT) >= out - inputs


@settings(max_examples=60, deadline=None)
@given(sizes, sizes, seeds, st.floats(0.0, 0.99), deltas, st.integers(0, 9))
def test_srank_is_at_least_the_bound(out, more, seed, deviation, delta, missing):
    """Inputs whitened, of any covariance, and of less than full rank; scaled weights."""
    weight = near_isometry(out, out + more, seed, deviation)
    deviations = torch.stack([dfi(weight.mT), smallest_dfi(weight)])
    white = slow.whitened_inputs(2 * (out + more), out + more, seed)
    assert slow.srank(white @ weight.T, delta) >= int(srank_bound(deviations, out, delta).max())
    scales = torch.linspace(1, 5, out + more).double()
    scales[:missing] = 0
    inputs = white * scales.flip(0)
    frame = polar(weight)
    eta = torch.linalg.eigvalsh(frame @ (inputs.T @ inputs / len(inputs)) @ frame.T)
    eta = eta[eta > 1e-10]
    if len(eta):
        bound = srank_bound(deviations, len(eta), delta, float(eta[-1] / eta[0]))
        assert slow.srank(3 * inputs @ weight.T, delta) >= int(bound.max())
    if missing == 0:
        bound = srank_bound(deviations, out, delta, eigenvalue_ratio=25.0)  # of the inputs, instead of the layer's
        assert slow.srank(inputs @ weight.T, delta) >= int(bound.max())


@settings(max_examples=40, deadline=None)
@given(sizes, sizes, seeds, st.floats(0.0, 0.99), deltas, st.integers(0, 9))
def test_srank_of_more_outputs_than_inputs(inputs, more, seed, deviation, delta, missing):
    weight = near_isometry(inputs, inputs + more, seed, deviation).mT
    scales = torch.linspace(1, 5, inputs).double()
    scales[: min(missing, inputs - 1)] = 0
    batch = slow.whitened_inputs(2 * inputs, inputs, seed) * scales
    present = scales[scales > 0]
    bound = srank_bound(dfi(weight), len(present), delta, float(present[-1] / present[0]) ** 2)
    assert slow.srank(batch @ weight.T, delta) >= int(bound)


@pytest.mark.parametrize("delta", [0.01, 0.1, 0.37])
@pytest.mark.parametrize("out", [1, 7, 64, 100])
def test_srank_bound_is_attained_by_isometries(out, delta):
    weight = polar(torch.randn(out, 100).double())
    outputs = slow.whitened_inputs(120, 100, seed=1) @ weight.T
    bound = int(srank_bound(dfi(weight.mT), out, delta))
    assert bound == slow.srank(outputs, delta) == math.ceil(round((1 - delta) * out, 6))


def test_srank_bound_by_hand():
    dfi_of_ratio_2 = torch.tensor(0.36)  # ε = 0.6: √(1.6 / 0.4) = 2
    assert srank_bound(dfi_of_ratio_2, 10, delta=0.5) == 4  # 5 / 1.5
    assert srank_bound(dfi_of_ratio_2, 10, delta=0.5, eigenvalue_ratio=4.0) == 2  # 5 / 2.5: nothing to round up
    for dtype in (torch.float32, torch.float64):  # 9.9 / 1.1, which is 9.000000000000002 there
        assert srank_bound(torch.tensor(0.36, dtype=dtype), 11, delta=0.1) == 9
    assert srank_bound(torch.tensor([1.0, 50.0]), 10).tolist() == [1, 1]
    assert srank_bound(torch.tensor(0.0), 0) == 0
    assert srank_bound(torch.zeros(2, 3), 5).shape == (2, 3)


def test_srank_bound_breaks_without_its_assumptions():
    """An isometry of 64 units, whose bound is 58: anisotropic inputs, a bias, or ReLU take the rank below it."""
    inputs = slow.whitened_inputs(4000, 64, seed=0)
    weight = polar(torch.randn(64, 64).double())
    bound = int(srank_bound(dfi(weight.mT), 64, delta=0.1))
    assert bound == 58 == slow.srank(inputs @ weight.T, 0.1)
    spectrum = torch.logspace(0, -2, 64).double()
    assert slow.srank(inputs * spectrum @ weight.T, 0.1) == 31
    assert int(srank_bound(dfi(weight.mT), 64, 0.1, eigenvalue_ratio=1e4)) == 6
    assert slow.srank(inputs @ weight.T + 100, 0.1) == 1
    assert slow.srank(torch.relu(inputs @ weight.T), 0.1) == 57


@settings(max_examples=60, deadline=None)
@given(sizes, sizes, seeds, st.floats(0.0, 0.99))
def test_activity_scores_are_within_their_bounds(out, more, seed, deviation):
    weight = near_isometry(out, out + more, seed, deviation)
    for value in (dfi(weight.mT), smallest_dfi(weight)):
        lower, upper = activity_score_bounds(value)
        scores = slow.activity_scores(weight)
        assert lower - 1e-12 <= scores.min()
        assert scores.max() <= upper + 1e-12


def test_activity_scores_by_sampling():
    """The closed form that the other tests use, and the bounds, for ReLU."""
    weight = near_isometry(5, 8, seed=3, deviation=0.9)
    inputs = torch.randn(200_000, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    means = torch.relu(inputs @ weight.T).mean(0)
    torch.testing.assert_close(means / means.mean(), slow.activity_scores(weight), atol=0.01, rtol=0)
    lower, upper = activity_score_bounds(dfi(weight.mT))
    assert lower < (means / means.mean()).min() < 1 < (means / means.mean()).max() < upper


def test_activity_bounds_by_hand():
    lower, upper = activity_score_bounds(torch.tensor([0.0, 0.36, 1.0, 9.0]).double())
    torch.testing.assert_close(lower, torch.tensor([1.0, 0.5, 0.0, 0.0]).double())
    torch.testing.assert_close(upper, torch.tensor([1.0, 2.0, math.inf, math.inf]).double())
    dead = torch.diag(torch.tensor([1.0, 1.0, 0.0]))
    assert dfi(dead.mT) == 1  # the smallest that a dead neuron leaves possible
    assert slow.activity_scores(dead)[2] == activity_score_bounds(dfi(dead.mT))[0] == 0


@settings(max_examples=50, deadline=None)
@given(st.floats(0.0, 0.99))
def test_dormancy_is_where_the_lower_bound_meets_the_threshold(threshold):
    lower, _ = activity_score_bounds(torch.tensor(dfi_without_dormancy(threshold), dtype=torch.float64))
    assert float(lower) == pytest.approx(threshold, abs=1e-7)


def test_the_papers_threshold():
    assert dfi_without_dormancy() == dfi_without_dormancy(0.025) == pytest.approx(0.9975, abs=5e-5)


def test_activity_bounds_break_without_their_assumptions():
    """Isometries, so that the bounds are 1 and 1."""
    eye = torch.eye(2, dtype=torch.float64)
    lower, _ = activity_score_bounds(dfi(eye.mT))
    assert lower == 1
    anisotropic = slow.activity_scores(eye, torch.diag(torch.tensor([1.0, 1e-4])).double())
    assert anisotropic[1] == pytest.approx(0.02 / 1.01)  # below 0.025: dormant
    density, fraction = math.exp(-4.5) / math.sqrt(2 * math.pi), math.erfc(3 / math.sqrt(2)) / 2
    means = torch.tensor([1 / math.sqrt(2 * math.pi), density - 3 * fraction])  # E relu(z), E relu(z − 3)
    assert (means / means.mean())[1] < 0.002  # a bias of −3: dormant
    inputs = torch.randn(100_000, generator=torch.Generator().manual_seed(0))
    assert torch.relu(inputs - 3).mean() == pytest.approx(float(means[1]), rel=0.2)
    signs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0]).double()] * 3)  # whitened, not rotation invariant
    assert torch.equal(signs.T @ signs / 8, torch.eye(3).double())
    half = 0.5**0.5
    weight = torch.tensor([[1.0, 0.0, 0.0], [0.0, half, half], [0.0, half, -half]]).double()
    activity = (signs @ weight.T).abs().mean(0)
    expected = torch.tensor([1.0, half, half]).double() * 3 / (1 + 2 * half)
    torch.testing.assert_close(activity / activity.mean(), expected)
    assert (activity / activity.mean()).min() < 0.9 < activity_score_bounds(dfi(weight.mT))[0]


def test_an_isometry_with_more_outputs_than_inputs_may_have_a_dead_neuron():
    weight = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    assert dfi(weight) == 0
    assert dfi(weight.mT) == 1
    assert slow.activity_scores(weight).tolist() == [1.5, 1.5, 0.0]
    assert torch.equal(fire(weight, "exact")[2], torch.zeros(2))


def test_fire_meets_the_assumptions_only_in_some_shapes():
    """Numbers in docs/theorems.md: a scaled isometry is not one, and 10 steps do not make a square weight one."""
    square = fire(torch.randn(512, 512), steps=10)
    assert 40 < dfi(square.mT) < 160
    assert smallest_dfi(square) > 1
    assert dfi(fire(torch.randn(512, 512), "exact").mT) < 1e-6
    wide = fire(torch.randn(128, 512), steps=10)
    assert float(dfi(wide.mT)) == pytest.approx(128 * (1 - 128 / 512) ** 2, rel=1e-3)
    assert smallest_dfi(wide) < 1e-3


def test_errors():
    zero = torch.tensor(0.0)
    for function in (activity_score_bounds, lambda value: srank_bound(value, 3)):
        for wrong in (-0.1, float("nan")):
            with pytest.raises(ValueError, match=r"`dfi` must be at least 0, got"):
                function(torch.tensor([0.0, wrong]))
    with pytest.raises(ValueError, match=r"`rank` must be at least 0, got -1"):
        srank_bound(zero, -1)
    for wrong in (0.0, 1.0):
        with pytest.raises(ValueError, match=rf"`delta` must be in \(0, 1\), got {wrong}"):
            srank_bound(zero, 3, delta=wrong)
    with pytest.raises(ValueError, match=r"`eigenvalue_ratio` must be at least 1, got 0.5"):
        srank_bound(zero, 3, eigenvalue_ratio=0.5)
    for wrong in (-0.1, 1.0):
        with pytest.raises(ValueError, match=rf"`threshold` must be in \[0, 1\), got {wrong}"):
            dfi_without_dormancy(wrong)
