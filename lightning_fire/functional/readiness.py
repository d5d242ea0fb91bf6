"""Optimization readiness: a lower bound of the gain from one gradient step, from gradients of batches.

Source: Wang et al., arXiv 2605.09044: gradient strength times gradient reliability.

Deviations:
    1. The paper's formula was not available: this one is derived from its description. Let g be the gradient of a
       random batch, G its expectation, and the loss L-smooth. A step −η·g lowers the loss by at least
       η‖G‖² − η²·L·E‖g‖² / 2 in expectation, at the best η by ‖G‖⁴ / (2·L·E‖g‖²): readiness / (2·L).
    2. Of k batches, ‖G‖² and E‖g‖² are estimated without bias; the bias of their quotient vanishes with k. An estimate
       of ‖G‖² below 0, as noise can give, counts as 0.
"""

import torch
from torch import Tensor

from lightning_fire.functional.checks import full_precision, real


@full_precision
def optimization_readiness(gradients: Tensor) -> Tensor:
    """Return the optimization readiness ‖G‖² · ‖G‖² / E‖g‖²: gradient strength times reliability.

    The reliability ‖G‖² / E‖g‖², in [0, 1], is 1 for batches of equal gradients. The readiness has the unit of a
    squared gradient: compare it only with values of the same loss and batch size.

    Args:
        gradients: Gradients of the same loss on k batches of one size, shape `(..., k, n)`, any floating dtype, with k
            of at least 2.

    Returns:
        Shape `(...)`, at least 0; NaN for a NaN or Inf.

    Raises:
        ValueError: If there are fewer than 2 gradients.
        TypeError: If the dtype is not a floating one.

    Example:
        >>> optimization_readiness(torch.tensor([[3.0, 0.0], [1.0, 0.0]]))  # ‖G‖² as 3 · 1, E‖g‖² as (9 + 1) / 2
        tensor(1.8000)
    """
    gradients = real(gradients, "gradients")
    squared_norm = gradients.square().sum(-1).mean(-1)
    return optimization_readiness_of(gradients.mean(-2), squared_norm, gradients.shape[-2])


@full_precision
def optimization_readiness_of(mean: Tensor, squared_norm: Tensor, count: int | Tensor) -> Tensor:
    """Return the optimization readiness from means over batches, without storing their gradients.

    Args:
        mean: Mean of the gradients, shape `(..., n)`.
        squared_norm: Mean of their squared norms, shape `(...)`.
        count: Number of batches, at least 2.

    Returns:
        Shape `(...)`, as `optimization_readiness`.

    Raises:
        ValueError: If `count` is below 2.

    Example:
        >>> optimization_readiness_of(torch.tensor([2.0, 0.0]), torch.tensor(5.0), 2)
        tensor(1.8000)
    """
    if count < 2:
        raise ValueError(f"readiness needs the gradients of at least 2 batches, got {int(count)}")
    strength = ((count * mean.square().sum(-1) - squared_norm) / (count - 1)).clamp(min=0)
    return torch.where(squared_norm == 0, torch.zeros_like(strength), strength.square() / squared_norm)
