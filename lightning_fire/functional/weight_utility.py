"""Utility of individual weights, and the choice of the least useful ones."""

import torch
from torch import Tensor

from lightning_fire.functional.checks import at_least, precise


def gradient_utility(weight: Tensor, gradient: Tensor) -> Tensor:
    """Utility of each weight: |w · ∂L/∂w|, the first-order change of the loss without it.

    Source: Hernandez-Garcia et al., Reinitializing weights vs units for maintaining plasticity in neural networks,
    CoLLAs 2025.

    Args:
        weight: Any shape, real floating dtype.
        gradient: Same shape, on any scale above 0.

    Returns:
        Same shape, at least 0, in float32 at least.

    Example:
        >>> gradient_utility(torch.tensor([1.0, -2.0]), gradient=torch.tensor([0.5, 0.5]))
        tensor([0.5000, 1.0000])
    """
    return (precise(gradient) * precise(weight)).abs()


def below_mean(utility: Tensor, factor: float) -> Tensor:
    """Return which weights have a utility of at most a factor times the mean.

    Source: Hernandez-Garcia et al., CoLLAs 2025, "threshold pruning".

    Args:
        utility: Any shape, at least 0.
        factor: At least 0; raises a ValueError below.

    Returns:
        Bool, same shape. All of them where every utility is 0, none where one is NaN or Inf.

    Example:
        >>> below_mean(torch.tensor([0.0, 1.0, 2.0, 5.0]), factor=0.5)
        tensor([ True,  True, False, False])
    """
    at_least(0, whole=False, factor=factor)
    utility = precise(utility)
    return (utility <= factor * utility.mean()) & utility.isfinite().all()


def lowest(utility: Tensor, number: int) -> Tensor:
    """Return which weights have the lowest utility.

    Source: Hernandez-Garcia et al., CoLLAs 2025, "proportional pruning".

    Args:
        utility: Any shape.
        number: Number of weights, at least 0; raises a ValueError below. All if there are fewer.

    Returns:
        Bool, same shape; ties by position. None where a utility is NaN or Inf.

    Example:
        >>> lowest(torch.tensor([3.0, 1.0, 2.0, 1.0]), number=2)
        tensor([False,  True, False,  True])
    """
    at_least(0, number=number)
    flat = utility.flatten()
    chosen = torch.zeros_like(flat, dtype=torch.bool)
    chosen[flat.argsort(stable=True)[:number]] = True
    return chosen.view(utility.shape) & utility.isfinite().all()
