"""How much hidden units do, and which of them to reset."""

import torch
from torch import Tensor

NEVER = torch.iinfo(torch.int64).max
"""Stands for a silence that was not observed."""


def dormancy_score(activity: Tensor) -> Tensor:
    """Return how active each unit is beside the other units of its layer: s_i = E|h_i| / mean_k E|h_k|.

    Source: Sokar et al., The dormant neuron phenomenon in deep reinforcement learning, ICML 2023, eq. 1.

    Args:
        activity: Mean of |h| over samples and places, shape `(..., units)`, at least 0.

    Returns:
        Shape `(..., units)`, at least 0, 1 on average; all 0 where no unit does anything.

    Example:
        >>> dormancy_score(torch.tensor([0.0, 1.0, 3.0, 4.0]))
        tensor([0.0000, 0.5000, 1.5000, 2.0000])
    """
    mean = activity.mean(-1, keepdim=True)
    return torch.where(mean == 0, torch.zeros_like(activity), activity / mean)


def dormant(activity: Tensor, threshold: float) -> Tensor:
    """Return which units are dormant: score at most τ.

    Source: Sokar et al., ICML 2023, as `dormancy_score`. The FIRE paper's text has s < τ.

    Args:
        activity: Mean of |h| over samples and places, shape `(..., units)`, at least 0; any other scale will do.
        threshold: τ, at least 0.

    Returns:
        Bool (..., units).

    Raises:
        ValueError: If `threshold` is below 0.

    Example:
        >>> dormant(torch.tensor([0.0, 1.0, 3.0, 4.0]), threshold=0.5)
        tensor([ True,  True, False, False])
    """
    if threshold < 0:
        raise ValueError(f"`threshold` must be at least 0, got {threshold}")
    return dormancy_score(activity) <= threshold


def dormant_fraction(activity: Tensor, threshold: float) -> Tensor:
    """Return how many of the units are dormant.

    Args:
        activity: Mean of |h| over samples and places, shape `(..., units)`, at least 0; any other scale will do.
        threshold: τ, at least 0.

    Returns:
        Fraction in [0, 1], shape `(...)`, dtype of `activity`; NaN where an activity is NaN or Inf, or units are none.

    Raises:
        ValueError: If `threshold` is below 0.

    Example:
        >>> dormant_fraction(torch.tensor([0.0, 1.0, 3.0, 4.0]), threshold=0.025)
        tensor(0.2500)
    """
    fraction = dormant(activity, threshold).to(activity.dtype).mean(-1)
    return fraction.masked_fill(~activity.isfinite().all(-1), torch.nan)


def contribution_utility(activity: Tensor, outgoing: Tensor) -> Tensor:
    """Return how much each unit says to the units after it: E|h_i| · Σ_k |w_ki|.

    Source: Dohare et al., Loss of plasticity in deep continual learning, Nature 2024: what is averaged over time there.

    Args:
        activity: Mean of |h| over samples and places, shape `(units,)`.
        outgoing: Sum of the absolute outgoing weights of each unit, shape `(units,)`.

    Returns:
        Shape `(units,)`, at least 0.
    """
    return activity * outgoing


def least_useful(utility: Tensor, eligible: Tensor, number: int) -> Tensor:
    """Return the eligible units with the lowest utility.

    Args:
        utility: Shape `(units,)`.
        eligible: Whether a unit may be chosen, bool (units,).
        number: How many to choose; no more than are eligible.

    Returns:
        Their numbers, int64 (number,), the lowest utility first; equal ones by their number.

    Example:
        >>> least_useful(torch.tensor([3.0, 1.0, 2.0]), torch.tensor([True, False, True]), 1)
        tensor([2])
    """
    order = torch.where(eligible, utility, torch.inf).argsort(stable=True)
    return order[: min(number, int(eligible.sum()))]


def silence_threshold(silences: Tensor, threshold: Tensor, rejection: float, expansion: float = 2.0) -> Tensor:
    """Return the longest silence t that a unit's own past makes likely: P(silence ≥ a) ≤ τ for every a > t.

    That is the lowest observed silence that a share 1 − τ of the observed ones does not exceed. Silences were cut off
    at `threshold`, where the unit was reset: if that lowest one lies beyond it, nobody knows how long, and the
    threshold grows. Without observations it stays.

    Source: Farias and Jozefiak, Self-Normalized Resets for Plasticity in Continual Learning, ICLR 2025.

    Args:
        silences: What was observed of each unit, int64 (units, observations), `NEVER` for nothing.
        threshold: Thresholds under which it was observed, int64 (units,).
        rejection: τ, in (0, 1).
        expansion: Factor of growth.

    Returns:
        New thresholds, int64 (units,).

    Example:
        >>> silence_threshold(torch.tensor([[0, 0, 5, 0], [64, 0, 70, 0]]), torch.tensor([60, 60]), rejection=0.25)
        tensor([  0, 120])
    """
    number = (silences != NEVER).sum(1)
    needed = (number.double() * (1 - rejection) - 1e-9).ceil().long()  # 0.98 · 50 is a little over 49
    last = torch.arange(1, silences.shape[1] + 1, device=silences.device) >= needed.unsqueeze(1)
    quantile = silences.sort(1).values.masked_fill(~last, NEVER).amin(1)
    grown = (threshold * expansion).long()
    return torch.where(number == 0, threshold, torch.where(quantile <= threshold, quantile, grown))
