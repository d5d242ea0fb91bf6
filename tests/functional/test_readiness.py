"""`functional.readiness`: against a slow version, closed forms, the bound that it stands for, properties, errors."""

import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_fire.functional import optimization_readiness, optimization_readiness_of


def gradients(seed: int, count: int, size: int = 5, signal: float = 1.0) -> torch.Tensor:
    return signal + torch.randn(count, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 999), st.integers(2, 7), st.sampled_from([0.0, 0.3, 3.0]))
def test_it_is_that_of_the_products_of_all_pairs(seed, count, signal):
    rows = gradients(seed, count, signal=signal)
    expected = reference.optimization_readiness(rows)
    assert optimization_readiness(rows).item() == pytest.approx(expected, rel=1e-9, abs=1e-12)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 999), st.integers(2, 7), st.floats(0.01, 100))
def test_the_strength_scales_with_the_loss_and_neither_order_nor_rotation_matters(seed, count, scale):
    rows = gradients(seed, count)
    found = optimization_readiness(rows).item()
    rotation = torch.linalg.qr(gradients(seed + 1, 5))[0]
    assert optimization_readiness(scale * rows).item() == pytest.approx(scale**2 * found, rel=1e-9)
    assert optimization_readiness(rows.flip(0) @ rotation).item() == pytest.approx(found, rel=1e-9, abs=1e-12)
    assert 0 <= found <= rows.square().sum(1).mean() * (1 + 1e-12)  # strength and mean squared norm bound it


def test_closed_forms():
    same = torch.tensor([[3.0, 4.0]]).expand(4, 2)
    assert optimization_readiness(same).item() == pytest.approx(25.0)  # reliability 1, strength 25
    assert optimization_readiness(torch.eye(6)).item() == pytest.approx(0.0, abs=1e-6)  # nothing in common
    assert optimization_readiness(torch.tensor([[1.0], [-1.0]])).item() == 0  # an estimate below 0
    assert optimization_readiness(torch.zeros(3, 2)).item() == 0
    assert optimization_readiness(torch.tensor([[torch.nan], [1.0]])).isnan()
    stacked = torch.stack([gradients(seed, 4) for seed in range(3)])
    assert torch.equal(optimization_readiness(stacked), torch.stack([optimization_readiness(each) for each in stacked]))


def test_the_estimates_of_strength_and_squared_norm_have_no_bias():
    mean, noise = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64), 2.0
    drawn = mean + noise * gradients(0, 300_000 * 4, 3, signal=0.0).view(300_000, 4, 3)
    squared = drawn.square().sum(-1).mean(-1)
    strength = (4 * drawn.mean(1).square().sum(-1) - squared) / 3
    assert strength.mean().item() == pytest.approx(mean.square().sum().item(), rel=0.01)
    whole = optimization_readiness(drawn.flatten(0, 1)).item()
    exact = mean.square().sum().item() ** 2 / (mean.square().sum().item() + 3 * noise**2)
    assert whole == pytest.approx(exact, rel=0.01)


def test_readiness_divided_by_2l_bounds_the_gain_of_the_best_step():
    """Mean over batches of the fall of a quadratic loss, at the η of the proof; equal if all curvatures are L."""
    curvatures = torch.tensor([4.0, 1.0, 0.5], dtype=torch.float64)
    for hessian in (curvatures, torch.full_like(curvatures, 4.0)):
        gradient = hessian * torch.tensor([1.0, 2.0, -1.0], dtype=torch.float64)
        rows = gradient + 0.7 * gradients(1, 50, 3, signal=0.0)
        rows += gradient - rows.mean(0)  # these are all batches that there are
        squared = rows.square().sum(1).mean()
        step = gradient.square().sum() / (4.0 * squared)
        gain = (step * rows @ gradient - step**2 * (rows.square() * hessian).sum(1) / 2).mean().item()
        exact = (gradient.square().sum() ** 2 / squared).item()
        assert gain >= exact / 8 * (1 - 1e-9)
        assert optimization_readiness(rows).item() == pytest.approx(exact, rel=0.05)
    assert gain == pytest.approx(exact / 8)


def test_errors():
    with pytest.raises(ValueError, match="at least 2 batches, got 1"):
        optimization_readiness(torch.ones(1, 3))
    with pytest.raises(ValueError, match="at least 2 batches, got 1"):
        optimization_readiness_of(torch.ones(3), torch.tensor(3.0), 1)
    with pytest.raises(TypeError, match="`gradients` must be of a real floating dtype"):
        optimization_readiness(torch.ones(2, 3, dtype=torch.int64))
