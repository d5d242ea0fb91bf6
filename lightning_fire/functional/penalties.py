"""What regularisers add to the loss, and its gradient in closed form."""

from torch import Tensor

from lightning_fire.functional.checks import precise


def parseval_penalty(weight: Tensor, scale: float = 1.0, groups: int = 1) -> Tensor:
    """Return ‖WWᵀ − s·I‖_F², the rows' deviation from being orthogonal (paper, baselines, "Parseval Reg.").

    Source: Chung et al., Parseval regularization for continual reinforcement learning, NeurIPS 2024.
    It cannot be 0 where `out > in`: WWᵀ has rank `in` at most, and s²·(out − in) is the floor.

    Args:
        weight: W, shape `(out, in / groups, *kernel)`; a kernel counts as inputs: `(out, in · kernel positions)`.
        scale: s, the squared singular value to reach, above 0.
        groups: Number of convolution groups; each is a matrix of its own, and the penalty their sum.

    Returns:
        Scalar, float32 at least.

    Raises:
        ValueError: If `weight` has fewer than 2 dimensions, or `scale` is not above 0.

    Example:
        >>> import torch
        >>> import torch
        >>> parseval_penalty(torch.tensor([[2.0, 0.0], [0.0, 1.0]]))
        tensor(9.)
    """
    matrices = _matrices(weight, scale, groups)
    _, rows, columns = matrices.shape
    floor = groups * scale**2 * max(rows - columns, 0)  # ‖WWᵀ − sI‖² = ‖WᵀW − sI‖² + s²(out − in) for out > in
    return _residual(matrices, scale).square().sum() + floor


def parseval_gradient(weight: Tensor, scale: float = 1.0, groups: int = 1) -> Tensor:
    """Return the gradient of `parseval_penalty`: 4·(WWᵀ − s·I)·W.

    Args:
        weight: W, shape `(out, in / groups, *kernel)`.
        scale: s, above 0.
        groups: Number of convolution groups.

    Returns:
        Same shape as `weight`, float32 at least.

    Raises:
        ValueError: As `parseval_penalty`.
    """
    matrices = _matrices(weight, scale, groups)
    residual = _residual(matrices, scale)
    product = residual @ matrices if matrices.shape[1] <= matrices.shape[2] else matrices @ residual
    return (4 * product).view(weight.shape)


def unit_scale_penalty(weight: Tensor) -> Tensor:
    """Return Σ (γ² − 1)², what the Parseval penalty is for the scale of a normalisation layer.

    Args:
        weight: γ, any shape.

    Returns:
        Scalar, float32 at least.
    """
    return (precise(weight).square() - 1).square().sum()


def unit_scale_gradient(weight: Tensor) -> Tensor:
    """Return the gradient of `unit_scale_penalty`: 4·(γ² − 1)·γ.

    Args:
        weight: γ, any shape.

    Returns:
        Same shape as `weight`, float32 at least.
    """
    weight = precise(weight)
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
    return (precise(weight) - precise(initial)).square().sum()


def l2_init_gradient(weight: Tensor, initial: Tensor) -> Tensor:
    """Return the gradient of `l2_init_penalty`: 2·(W − W₀).

    Args:
        weight: W, any shape.
        initial: W₀, same shape.

    Returns:
        Same shape as `weight`, float32 at least.
    """
    return 2 * (precise(weight) - precise(initial))


def _matrices(weight: Tensor, scale: float, groups: int) -> Tensor:
    """Return the matrices of a weight, shape `(groups, out / groups, in / groups · kernel positions)`."""
    if weight.ndim < 2:
        raise ValueError(f"`weight` must have at least 2 dimensions, got shape {tuple(weight.shape)}")
    if not scale > 0:
        raise ValueError(f"`scale` must be above 0, got {scale}")
    if groups < 1 or len(weight) % groups:
        raise ValueError(f"`groups` must divide the {len(weight)} outputs of `weight`, got {groups}")
    return precise(weight).flatten(1).unflatten(0, (groups, -1))


def _residual(matrices: Tensor, scale: float) -> Tensor:
    """Return the Gram matrices on the short side, less s·I."""
    gram = matrices @ matrices.mT if matrices.shape[1] <= matrices.shape[2] else matrices.mT @ matrices
    gram.diagonal(dim1=-2, dim2=-1).sub_(scale)
    return gram
