"""How much hidden units do, and which of them to reset."""

import torch
from torch import Tensor


def dormancy_score(activity: Tensor) -> Tensor:
    """Return how active each unit is beside the other units of its layer: s_i = E|h_i| / mean_k E|h_k|.

    Source: Sokar et al., The dormant neuron phenomenon in deep reinforcement learning, ICML 2023, eq. 1.

    Args:
        activity: Mean of |h| over samples and places, shape `(units,)`, at least 0.

    Returns:
        Shape `(units,)`, at least 0, 1 on average; all 0 where no unit does anything.

    Example:
        >>> import torch
        >>> dormancy_score(torch.tensor([0.0, 1.0, 3.0, 4.0]))
        tensor([0.0000, 0.5000, 1.5000, 2.0000])
    """
    mean = activity.mean()
    return torch.where(mean > 0, activity / mean, torch.zeros_like(activity))


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
        >>> import torch
        >>> least_useful(torch.tensor([3.0, 1.0, 2.0]), torch.tensor([True, False, True]), 1)
        tensor([2])
    """
    order = torch.where(eligible, utility, torch.inf).argsort(stable=True)
    return order[: min(number, int(eligible.sum()))]
