"""What regularisers add to the loss, and its gradient in closed form."""

import torch
from torch import Tensor


def parseval_penalty(weight: Tensor, scale: float = 1.0) -> Tensor:
    """Return ‖WWᵀ − s·I‖_F², the rows' deviation from being orthogonal (paper, baselines, "Parseval Reg.").

    Source: Chung et al., Parseval regularization for continual reinforcement learning, NeurIPS 2024.
    It cannot be 0 where `out > in`: WWᵀ has rank `in` at most, and s²·(out − in) is the floor.

    Args:
        weight: W, shape `(out, in, *kernel)`; a kernel counts as inputs: `(out, in · kernel positions)`.
        scale: s, the squared singular value to reach, above 0.

    Returns:
        Scalar, float32 at least.

    Raises:
        ValueError: If `weight` has fewer than 2 dimensions, or `scale` is not above 0.

    Example:
        >>> import torch
        >>> parseval_penalty(torch.tensor([[2.0, 0.0], [0.0, 1.0]]))
        tensor(9.)
    """
    matrix = _matrix(weight, scale)
    rows, columns = matrix.shape
    floor = scale**2 * max(rows - columns, 0)  # ‖WWᵀ − sI‖² = ‖WᵀW − sI‖² + s²(out − in) for out > in
    return _residual(matrix, scale).square().sum() + floor


def parseval_gradient(weight: Tensor, scale: float = 1.0) -> Tensor:
    """Return the gradient of `parseval_penalty`: 4·(WWᵀ − s·I)·W.

    Args:
        weight: W, shape `(out, in, *kernel)`.
        scale: s, above 0.

    Returns:
        Same shape as `weight`, float32 at least.

    Raises:
        ValueError: As `parseval_penalty`.
    """
    matrix = _matrix(weight, scale)
    residual = _residual(matrix, scale)
    product = residual @ matrix if matrix.shape[0] <= matrix.shape[1] else matrix @ residual
    return (4 * product).view(weight.shape)


def unit_scale_penalty(weight: Tensor) -> Tensor:
    """Return Σ (γ² − 1)², what the Parseval penalty is for the scale of a normalisation layer.

    Args:
        weight: γ, any shape.

    Returns:
        Scalar, float32 at least.
    """
    return (_precise(weight).square() - 1).square().sum()


def unit_scale_gradient(weight: Tensor) -> Tensor:
    """Return the gradient of `unit_scale_penalty`: 4·(γ² − 1)·γ.

    Args:
        weight: γ, any shape.

    Returns:
        Same shape as `weight`, float32 at least.
    """
    weight = _precise(weight)
    return 4 * (weight.square() - 1) * weight


def l2_init_penalty(weight: Tensor, initial: Tensor) -> Tensor:
    """Return ‖W − W₀‖_F², the squared distance from the initial values (paper, baselines, "L2 Init").

    Source: Kumar et al., Maintaining plasticity in continual learning via regenerative regularization, 2023.

    Args:
        weight: W, any shape.
        initial: W₀, same shape.

    Returns:
        Scalar, float32 at least.
    """
    return (_precise(weight) - _precise(initial)).square().sum()


def l2_init_gradient(weight: Tensor, initial: Tensor) -> Tensor:
    """Return the gradient of `l2_init_penalty`: 2·(W − W₀).

    Args:
        weight: W, any shape.
        initial: W₀, same shape.

    Returns:
        Same shape as `weight`, float32 at least.
    """
    return 2 * (_precise(weight) - _precise(initial))


def _precise(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _matrix(weight: Tensor, scale: float) -> Tensor:
    if weight.ndim < 2:
        raise ValueError(f"`weight` must have at least 2 dimensions, got shape {tuple(weight.shape)}")
    if not scale > 0:
        raise ValueError(f"`scale` must be above 0, got {scale}")
    return _precise(weight).flatten(1)


def _residual(matrix: Tensor, scale: float) -> Tensor:
    """Return the Gram matrix on the short side, less s·I."""
    gram = matrix @ matrix.mT if matrix.shape[0] <= matrix.shape[1] else matrix.mT @ matrix
    gram.diagonal().sub_(scale)
    return gram
