"""Projection of weights to a norm (Normalize-and-Project), and soft rescaling towards one."""

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
    if not weight.is_floating_point():
        raise TypeError(f"`weight` must be of a real floating dtype, got {weight.dtype}")
    moderate, _, present = _in_range(weight)
    return (moderate * torch.where(present > 0, norm / present, 1.0)).to(weight.dtype)


def soft_rescaling(norm: Tensor, initial: Tensor | float, strength: float) -> Tensor:
    """Factor that moves the norm of a weight towards its initial one: (λ·‖W₀‖ + (1 − λ)·‖W‖) / ‖W‖.

    Source: Oh et al., Recovering plasticity of neural networks via soft weight rescaling, arXiv 2507.04683, 2025.

    Args:
        norm: ‖W‖, at least 0.
        initial: ‖W₀‖, at least 0.
        strength: λ in [0, 1]; raises a ValueError outside.

    Returns:
        Shape of `norm`; 1 where the norm is 0.

    Example:
        >>> soft_rescaling(torch.tensor([2.0, 4.0, 0.0]), initial=2.0, strength=0.5)
        tensor([1.0000, 0.7500, 1.0000])
    """
    if not 0 <= strength <= 1:
        raise ValueError(f"`strength` must be in [0, 1], got {strength}")
    whole = precise(norm)
    return torch.where(whole > 0, strength * initial / whole + (1 - strength), 1.0).to(norm.dtype)


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
