"""Projection of weights to a norm (Normalize-and-Project)."""

import torch
from torch import Tensor

from lightning_fire.functional.checks import precise
from lightning_fire.functional.newton_schulz import power_of_two


def project_to_norm(weight: Tensor, norm: Tensor | float) -> Tensor:
    """Rescale a weight to a Frobenius norm: ρ·W / ‖W‖_F.

    Source: Lyle et al., Normalization and effective learning rates in reinforcement learning, NeurIPS 2024.

    Args:
        weight: Any shape, floating dtype.
        norm: ρ, a scalar, at least 0.

    Returns:
        Shape and dtype of `weight`; a weight of 0 stays 0.

    Example:
        >>> project_to_norm(torch.tensor([[3.0, 4.0]]), norm=1.0)
        tensor([[0.6000, 0.8000]])
    """
    moderate, _, present = _in_range(weight)
    return (moderate * torch.where(present > 0, norm / present, 1.0)).to(weight.dtype)


def frobenius_norm(weight: Tensor) -> Tensor:
    """Return ‖W‖_F, a scalar of float32 at least."""
    _, size, norm = _in_range(weight)
    return size * norm


def _in_range(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return a weight divided by a power of two, which is exact, that power, and the norm of the quotient.

    Squares of the quotient neither overflow nor vanish.
    """
    whole = precise(weight)
    if not whole.numel():
        return whole, whole.new_ones(()), whole.new_zeros(())
    size = power_of_two(whole.reshape(1, -1)).reshape(())
    quotient = whole / size
    norm: Tensor = torch.linalg.vector_norm(quotient)
    return quotient, size, norm
