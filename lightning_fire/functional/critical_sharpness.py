"""Critical sharpness: the curvature of a loss along an update, from values of the loss alone.

Source: Kalra et al., arXiv 2601.16979.

Deviations:
    1. The line search is our own: after the first step that raises the loss it interpolates instead of bisecting, which
       is exact where the loss is a quadratic function of the step, so that few evaluations are enough.
"""

import math
from collections.abc import Callable
from typing import NamedTuple


class CriticalSharpness(NamedTuple):
    """Curvature of a loss along an update.

    Attributes:
        value: λ_c = 2 / η_c; 0 if no tried step raises the loss.
        evaluations: Number of loss evaluations.
    """

    value: float
    evaluations: int


def critical_sharpness(
    loss: Callable[[float], float],
    slope: float,
    start: float | None = None,
    tolerance: float = 0.05,
    max_evaluations: int = 10,
) -> CriticalSharpness:
    """Return λ_c = 2 / η_c, where η_c is the smallest step along an update d that raises the loss.

    For a quadratic loss with Hessian H, λ_c is dᵀHd / −gᵀd for the gradient g: along −g it is gᵀHg / gᵀg, at most
    λ_max. The step grows 2 to 8-fold until it raises the loss: a temporary rise between two tried steps is not found.

    Args:
        loss: From a step η to the loss at the weights plus η·d. NaN and Inf count as a rise.
        slope: Derivative of the loss with respect to the step at 0, gᵀd, below 0.
        start: First step to try, above 0. Default: the step at which a line of this slope reaches 0.
        tolerance: Stop at a change of η_c by at most this fraction, above 0.
        max_evaluations: Maximum number of loss evaluations, at least 3; a quadratic loss takes about 4.

    Returns:
        λ_c, in the unit 1 / η, and the number of evaluations.

    Raises:
        ValueError: If an argument is out of range, `slope` is not below 0, or the loss at step 0 is not finite.

    Example:
        >>> curvatures, x = (1.0, 4.0), (1.0, 1.0)  # loss ½ Σ c·x², gradient c·x
        >>> loss = lambda step: sum(c * (v - step * c * v) ** 2 for c, v in zip(curvatures, x)) / 2
        >>> round(critical_sharpness(loss, slope=-17.0).value, 4)  # (1³ + 4³) / (1² + 4²)
        3.8235
    """
    if not -math.inf < slope < 0:
        raise ValueError(f"`slope` must be below 0 and finite, got {slope}: the update is 0, or not downhill")
    if start is not None and not 0 < start < math.inf:
        raise ValueError(f"`start` must be above 0 and finite, got {start}")
    if tolerance <= 0:
        raise ValueError(f"`tolerance` must be above 0, got {tolerance}")
    if max_evaluations < 3:
        raise ValueError(f"`max_evaluations` must be at least 3, got {max_evaluations}")
    at_0 = loss(0.0)
    if not math.isfinite(at_0):
        raise ValueError(f"the loss must be finite, got {at_0}")
    # The mean slope (loss(η) − loss(0)) / η is linear in η for a quadratic loss, and has its zero at η_c.
    low, low_slope = 0.0, slope
    high, high_slope = math.inf, math.inf
    step = start or (abs(at_0) or 1.0) / -slope
    rises: list[bool] = []
    for evaluations in range(2, max_evaluations + 1):
        mean_slope = (loss(step) - at_0) / step
        rises.append(not mean_slope <= 0)  # also for NaN
        if rises[-1]:
            high, high_slope = step, mean_slope if math.isfinite(mean_slope) else math.inf
        else:
            low, low_slope = step, mean_slope
        if high == math.inf:
            gone = low_slope / slope  # fraction of the slope that is left
            zero = low / (1 - gone) if gone < 1 else math.inf
            step = min(max((1 + tolerance / 2) * zero, 2 * low), 8 * low)
            continue
        zero = low + (high - low) * low_slope / (low_slope - high_slope) if high_slope < math.inf else (low + high) / 2
        if abs(zero - step) <= tolerance * step:
            return CriticalSharpness(2 / zero, evaluations)
        stuck = len(rises) > 1 and rises[-1] == rises[-2] and low > 0
        step = (low + high) / 2 if stuck else zero
    return CriticalSharpness(0.0 if high == math.inf else 2 / step, evaluations)
