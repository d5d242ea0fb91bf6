"""Projection of weights to a norm (Normalize-and-Project)."""

import torch
from torch import Tensor


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
    present = frobenius_norm(weight)
    return weight * torch.where(present > 0, norm / present, 1.0).to(weight.dtype)


def frobenius_norm(weight: Tensor) -> Tensor:
    """Return ‖W‖_F, a scalar of float32 at least."""
    norm: Tensor = torch.linalg.vector_norm(weight, dtype=torch.promote_types(weight.dtype, torch.float32))
    return norm
