"""Activity and utility of hidden units, and the choice of units to reset.

An *activity* is the mean of |h| over samples and positions, shape `(..., units)`, at least 0, on any scale.
"""

import torch
from torch import Tensor

NEVER = torch.iinfo(torch.int64).max
"""Marks an inter-firing interval that was not observed."""


def dormancy_score(activity: Tensor) -> Tensor:
    """Activity of each unit relative to the mean of its layer: s_i = E|h_i| / mean_k E|h_k|.

    Source: Sokar et al., The dormant neuron phenomenon in deep reinforcement learning, ICML 2023, eq. 1.

    Args:
        activity: Shape `(..., units)`.

    Returns:
        Shape `(..., units)`, at least 0, 1 on average; all 0 where no unit is active.

    Example:
        >>> dormancy_score(torch.tensor([0.0, 1.0, 3.0, 4.0]))
        tensor([0.0000, 0.5000, 1.5000, 2.0000])
    """
    mean = activity.mean(-1, keepdim=True)
    return torch.where(mean == 0, torch.zeros_like(activity), activity / mean)


def dormant(activity: Tensor, threshold: float) -> Tensor:
    """Return which units are dormant: `dormancy_score` at most τ, as Sokar et al.; the FIRE paper's text has s < τ.

    Args:
        activity: Shape `(..., units)`.
        threshold: τ, at least 0; raises a ValueError below.

    Returns:
        Bool (..., units).

    Example:
        >>> dormant(torch.tensor([0.0, 1.0, 3.0, 4.0]), threshold=0.5)
        tensor([ True,  True, False, False])
    """
    if threshold < 0:
        raise ValueError(f"`threshold` must be at least 0, got {threshold}")
    return dormancy_score(activity) <= threshold


def dormant_fraction(activity: Tensor, threshold: float) -> Tensor:
    """Fraction of units that are `dormant`.

    Args:
        activity: Shape `(..., units)`.
        threshold: τ, at least 0; raises a ValueError below.

    Returns:
        In [0, 1], shape `(...)`, dtype of `activity`; NaN where an activity is NaN or Inf, or without units.

    Example:
        >>> dormant_fraction(torch.tensor([0.0, 1.0, 3.0, 4.0]), threshold=0.025)
        tensor(0.2500)
    """
    fraction = dormant(activity, threshold).to(activity.dtype).mean(-1)
    return fraction.masked_fill(~activity.isfinite().all(-1), torch.nan)


def contribution_utility(activity: Tensor, outgoing: Tensor) -> Tensor:
    """Contribution of each unit to the units after it: E|h_i| · Σ_k |w_ki|.

    Source: Dohare et al., Loss of plasticity in deep continual learning, Nature 2024, before the average over time.

    Args:
        activity: Shape `(units,)`.
        outgoing: Sum of the absolute outgoing weights of each unit, shape `(units,)`.

    Returns:
        Shape `(units,)`, at least 0.

    Example:
        >>> contribution_utility(torch.tensor([1.0, 2.0]), outgoing=torch.tensor([3.0, 0.5]))
        tensor([3., 1.])
    """
    return activity * outgoing


def least_useful(utility: Tensor, eligible: Tensor, number: int) -> Tensor:
    """Return the eligible units with the lowest utility.

    Args:
        utility: Shape `(units,)`.
        eligible: Whether a unit may be chosen, bool (units,); on the CPU, so that nothing waits for a GPU, or on the
            device of `utility`.
        number: Number of units to choose; all eligible ones if there are fewer.

    Returns:
        Their indices, int64 (number,), the lowest utility first; ties by index.

    Example:
        >>> least_useful(torch.tensor([3.0, 1.0, 2.0]), torch.tensor([True, False, True]), 1)
        tensor([2])
    """
    most = int(eligible.sum())
    eligible = eligible.to(utility.device, non_blocking=utility.is_cuda)
    return torch.where(eligible, utility, torch.inf).argsort(stable=True)[: min(number, most)]


def inter_firing_threshold(intervals: Tensor, threshold: Tensor, rejection: float, expansion: float = 2.0) -> Tensor:
    """Return the longest inter-firing interval t that each unit's past makes probable: P(interval ≥ a) ≤ τ for a > t.

    This is the 1 − τ quantile of the observed intervals. Intervals are cut off at `threshold`, where the unit was
    reset: if the quantile is above it, its value is unknown, and the threshold grows. Without observations it is
    unchanged.

    Source: Farias and Jozefiak, Self-Normalized Resets for Plasticity in Continual Learning, ICLR 2025.

    Args:
        intervals: Observed inter-firing intervals of each unit, int64 (units, observations), `NEVER` for none.
        threshold: Thresholds at the time of observation, int64 (units,).
        rejection: τ, in (0, 1).
        expansion: Factor of growth.

    Returns:
        New thresholds, int64 (units,).

    Example:
        >>> inter_firing_threshold(torch.tensor([[0, 0, 5, 0], [64, 0, 70, 0]]), torch.tensor([60, 60]), rejection=0.25)
        tensor([  0, 120])
    """
    number = (intervals != NEVER).sum(1)
    needed = (number.double() * (1 - rejection) - 1e-9).ceil().long()  # 0.98 · 50 is a little over 49
    last = torch.arange(1, intervals.shape[1] + 1, device=intervals.device) >= needed.unsqueeze(1)
    quantile = intervals.sort(1).values.masked_fill(~last, NEVER).amin(1)
    grown = (threshold * expansion).long()
    return torch.where(number == 0, threshold, torch.where(quantile <= threshold, quantile, grown))
