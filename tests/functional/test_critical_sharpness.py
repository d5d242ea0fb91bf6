"""`functional.critical_sharpness`: closed forms, a slow version, properties, errors."""

import math

import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

from lightning_fire.functional import critical_sharpness


def quadratic(seed: int, scale: float = 1.0, floor: float = 0.0):
    """A positive Hessian, a point, an update downhill, and the loss along it."""
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(6, 6, generator=generator, dtype=torch.float64)
    hessian, x = root @ root.T, torch.randn(6, generator=generator, dtype=torch.float64)
    gradient = hessian @ x
    update = torch.randn(6, generator=generator, dtype=torch.float64)
    update = -scale * update * torch.sign(update @ gradient)

    def loss_along(direction):
        return lambda step: float((x + step * direction) @ hessian @ (x + step * direction)) / 2 + floor

    return hessian, gradient, update, loss_along


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 9999), st.floats(-5, 50))
def test_of_a_quadratic_it_is_the_closed_form(seed, floor):
    """dᵀHd / −gᵀd for an update, gᵀHg / gᵀg along the gradient, which is at most λ_max."""
    hessian, gradient, update, loss_along = quadratic(seed, floor=floor)
    expected = float(update @ hessian @ update / -(gradient @ update))
    assert critical_sharpness(loss_along(update), float(gradient @ update)).value == pytest.approx(expected, rel=1e-5)
    along = critical_sharpness(loss_along(-gradient), -float(gradient @ gradient)).value
    assert along == pytest.approx(float(gradient @ hessian @ gradient / (gradient @ gradient)), rel=1e-5)
    assert along <= torch.linalg.eigvalsh(hessian)[-1] * (1 + 1e-5)


def test_a_quadratic_takes_four_evaluations_from_the_default_start():
    _, gradient, _, loss_along = quadratic(3)
    assert critical_sharpness(loss_along(-gradient), -float(gradient @ gradient)).evaluations <= 4


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 999), st.floats(0.01, 100), st.floats(0.01, 100))
def test_it_scales_with_the_update_and_not_with_the_loss(seed, of_update, of_loss):
    _, gradient, update, loss_along = quadratic(seed)
    slope, loss = float(gradient @ update), loss_along(update)
    found = critical_sharpness(loss, slope).value
    assert critical_sharpness(lambda s: of_loss * loss(s), of_loss * slope).value == pytest.approx(found, rel=1e-5)
    longer = critical_sharpness(lambda s: loss(of_update * s), of_update * slope).value
    assert longer == pytest.approx(of_update * found, rel=1e-5)


@pytest.mark.parametrize("steps", [0, 5, 50])
@pytest.mark.parametrize("activation", [nn.Tanh, nn.ReLU])
def test_of_a_network_it_is_that_of_a_slow_search(activation, steps):
    torch.manual_seed(steps)
    net = nn.Sequential(nn.Linear(10, 32), activation(), nn.Linear(32, 5)).double()
    x, y = torch.randn(16, 10, dtype=torch.float64), torch.randint(0, 5, (16,))
    optimizer = torch.optim.SGD(net.parameters(), 0.3)
    for _ in range(steps):
        optimizer.zero_grad()
        cross_entropy(net(x), y).backward()
        optimizer.step()
    values = [parameter.detach().clone() for parameter in net.parameters()]
    gradient = torch.autograd.grad(cross_entropy(net(x), y), list(net.parameters()))

    @torch.no_grad()
    def loss(step):
        for parameter, value, each in zip(net.parameters(), values, gradient, strict=True):
            parameter.copy_(value - step * each)
        return float(cross_entropy(net(x), y))

    found = critical_sharpness(loss, -float(sum(each.square().sum() for each in gradient)))
    assert found.value == pytest.approx(reference.critical_sharpness(loss, 1e-2), rel=0.05)
    assert found.evaluations <= 10


def test_a_loss_that_is_not_finite_counts_as_a_rise():
    """Half a parabola, and a wall at 1."""

    def loss(step):
        return math.nan if step > 1 else 1 - step

    found = critical_sharpness(loss, -1.0, start=8.0, max_evaluations=40)
    assert found.value == pytest.approx(2.0, rel=0.05)


def test_it_is_0_where_no_step_raises_the_loss():
    found = critical_sharpness(lambda step: -step, -1.0, start=1.0, max_evaluations=6)
    assert found == (0.0, 6)


def test_errors():
    def bowl(step):
        return (step - 1) ** 2

    with pytest.raises(ValueError, match="`slope` must be below 0 and finite, got 0: the update is 0, or not downhill"):
        critical_sharpness(bowl, 0)
    with pytest.raises(ValueError, match="`start` must be above 0 and finite, got 0"):
        critical_sharpness(bowl, -2.0, start=0)
    with pytest.raises(ValueError, match="`tolerance` must be above 0, got 0"):
        critical_sharpness(bowl, -2.0, tolerance=0)
    with pytest.raises(ValueError, match="`max_evaluations` must be at least 3, got 2"):
        critical_sharpness(bowl, -2.0, max_evaluations=2)
    with pytest.raises(ValueError, match="the loss must be finite, got nan"):
        critical_sharpness(lambda step: math.nan, -2.0)
