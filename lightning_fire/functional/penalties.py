"""Penalties of regularizers, and their gradients in closed form; float32, or float64 for float64.

A penalty is a scalar. Weights of fewer than 2 dimensions, where matrices are needed, and arguments out of their range
raise a ValueError.
"""

import torch
from torch import Tensor

from lightning_fire.functional.checks import full_precision, precise


@full_precision
def parseval_penalty(weight: Tensor, scale: float = 1.0, groups: int = 1) -> Tensor:
    """Deviation of the rows from orthogonality: ‖WWᵀ − s·I‖_F² (paper, baselines, "Parseval Reg.").

    It cannot be 0 if `out > in`: WWᵀ has rank `in` at most, and s²·(out − in) is the minimum.

    Source: Chung et al., Parseval regularization for continual reinforcement learning, NeurIPS 2024.

    Args:
        weight: W, shape `(out, in / groups, *kernel)`; a kernel counts as inputs: `(out, in · kernel positions)`.
        scale: s, the squared singular value to reach, above 0.
        groups: Number of convolution groups, which divides `out`; each is a matrix of its own, the penalty their sum.

    Example:
        >>> import torch
        >>> parseval_penalty(torch.tensor([[2.0, 0.0], [0.0, 1.0]]))
        tensor(9.)
    """
    matrices = _matrices(weight, scale, groups)
    _, rows, columns = matrices.shape
    floor = groups * scale**2 * max(rows - columns, 0)  # ‖WWᵀ − sI‖² = ‖WᵀW − sI‖² + s²(out − in) for out > in
    return _residual(matrices, scale).square().sum() + floor


@full_precision
def parseval_gradient(weight: Tensor, scale: float = 1.0, groups: int = 1) -> Tensor:
    """Gradient of `parseval_penalty`, with its arguments: 4·(WWᵀ − s·I)·W, of the shape of `weight`.

    Example:
        >>> import torch
        >>> parseval_gradient(torch.tensor([[2.0, 0.0], [0.0, 1.0]]))
        tensor([[24.,  0.],
                [ 0.,  0.]])
    """
    matrices = _matrices(weight, scale, groups)
    residual = _residual(matrices, scale)
    product = residual @ matrices if matrices.shape[1] <= matrices.shape[2] else matrices @ residual
    return (4 * product).view(weight.shape)


def unit_scale_penalty(weight: Tensor) -> Tensor:
    """Counterpart of `parseval_penalty` for the scale γ of a normalization layer, any shape: Σ (γ² − 1)², a scalar.

    Example:
        >>> import torch
        >>> unit_scale_penalty(torch.tensor([1.0, 2.0]))
        tensor(9.)
    """
    return (precise(weight).square() - 1).square().sum()


def unit_scale_gradient(weight: Tensor) -> Tensor:
    """Gradient of `unit_scale_penalty`: 4·(γ² − 1)·γ, of the shape of `weight`.

    Example:
        >>> import torch
        >>> unit_scale_gradient(torch.tensor([1.0, 2.0]))
        tensor([ 0., 24.])
    """
    weight = precise(weight)
    return 4 * (weight.square() - 1) * weight


def l2_init_penalty(weight: Tensor, initial: Tensor) -> Tensor:
    """Squared distance from the initial values: ‖W − W₀‖_F² (paper, baselines, "L2 Init").

    Source: Kumar et al., Maintaining plasticity in continual learning via regenerative regularization, 2023.

    Args:
        weight: W, any shape.
        initial: W₀, same shape.

    Example:
        >>> import torch
        >>> l2_init_penalty(torch.tensor([1.0, 2.0]), initial=torch.tensor([1.0, 5.0]))
        tensor(9.)
    """
    return (precise(weight) - precise(initial)).square().sum()


def l2_init_gradient(weight: Tensor, initial: Tensor) -> Tensor:
    """Gradient of `l2_init_penalty`, with its arguments: 2·(W − W₀), of the shape of `weight`.

    Example:
        >>> import torch
        >>> l2_init_gradient(torch.tensor([1.0, 2.0]), initial=torch.tensor([1.0, 5.0]))
        tensor([ 0., -6.])
    """
    return 2 * (precise(weight) - precise(initial))


@full_precision
def spectral_penalty(weight: Tensor, vector: Tensor, groups: int = 1) -> Tensor:
    """Deviation of the largest singular value from 1: (σ₁² − 1)², with the estimate ‖Wv‖ of σ₁.

    Source: Lewandowski et al., Learning continually by spectral regularization, ICLR 2025, with its exponent k = 2.

    Args:
        weight: W, shape `(out, in / groups, *kernel)`; a kernel counts as inputs: `(out, in · kernel positions)`.
        vector: v, estimate of the right singular vector of σ₁, see `power_iteration`; shape
            `(groups, in / groups · kernel positions)`, each row of length 1, dtype float32, or float64 for float64.
        groups: Number of convolution groups, which divides `out`; each is a matrix of its own, the penalty their sum.

    Example:
        >>> spectral_penalty(torch.diag(torch.tensor([2.0, 1.0])), torch.tensor([[1.0, 0.0]]))
        tensor(9.)
    """
    image = _matrices(weight, 1.0, groups) @ vector.unsqueeze(-1)  # (groups, out / groups, 1)
    return (image.square().sum((1, 2)) - 1).square().sum()


@full_precision
def spectral_gradient(weight: Tensor, vector: Tensor, groups: int = 1) -> Tensor:
    """Gradient of `spectral_penalty` with respect to `weight`, of its shape: 4·(‖Wv‖² − 1)·Wv·vᵀ.

    Example:
        >>> spectral_gradient(torch.diag(torch.tensor([2.0, 1.0])), torch.tensor([[1.0, 0.0]]))
        tensor([[24.,  0.],
                [ 0.,  0.]])
    """
    image = _matrices(weight, 1.0, groups) @ vector.unsqueeze(-1)
    deviation = image.square().sum((1, 2), keepdim=True) - 1
    return (4 * deviation * image * vector.unsqueeze(-2)).view(weight.shape)


@full_precision
def power_iteration(weight: Tensor, vector: Tensor, groups: int = 1) -> Tensor:
    """One step v ← WᵀWv / ‖WᵀWv‖ towards the right singular vector of the largest singular value.

    Args:
        weight: W, as in `spectral_penalty`.
        vector: v, as in `spectral_penalty`.
        groups: Number of convolution groups.

    Returns:
        The next v, of the shape of `vector`; `vector` itself where WᵀWv is 0 or not a number.

    Example:
        >>> power_iteration(torch.diag(torch.tensor([2.0, 1.0])), torch.tensor([[0.6, 0.8]]))
        tensor([[0.9487, 0.3162]])
    """
    matrices = _matrices(weight, 1.0, groups)
    image = (matrices.mT @ (matrices @ vector.to(matrices).unsqueeze(-1))).squeeze(-1)
    length = torch.linalg.vector_norm(image, dim=-1, keepdim=True)
    return torch.where(length > 0, image / length, vector).to(vector.dtype)


def bias_penalty(bias: Tensor) -> Tensor:
    """Counterpart of `spectral_penalty` for a bias b, any shape, which it pulls to 0: ‖b‖⁴.

    Example:
        >>> bias_penalty(torch.tensor([1.0, 2.0]))
        tensor(25.)
    """
    return precise(bias).square().sum().square()


def bias_gradient(bias: Tensor) -> Tensor:
    """Gradient of `bias_penalty`: 4·‖b‖²·b, of the shape of `bias`.

    Example:
        >>> bias_gradient(torch.tensor([1.0, 2.0]))
        tensor([20., 40.])
    """
    bias = precise(bias)
    return 4 * bias.square().sum() * bias


def _matrices(weight: Tensor, scale: float, groups: int) -> Tensor:
    """Return the matrices of a weight, shape `(groups, out / groups, in / groups · kernel positions)`."""
    if weight.ndim < 2:
        raise ValueError(f"`weight` must have at least 2 dimensions, got shape {tuple(weight.shape)}")
    if not scale > 0:
        raise ValueError(f"`scale` must be above 0, got {scale}")
    if groups < 1 or len(weight) % groups:
        raise ValueError(f"`groups` must divide the {len(weight)} outputs of `weight`, got {groups}")
    rows = precise(weight).flatten(1)
    return rows.view(groups, len(rows) // groups, rows.shape[1])


def _residual(matrices: Tensor, scale: float) -> Tensor:
    """Return the Gram matrices on the short side, less s·I."""
    gram = matrices @ matrices.mT if matrices.shape[1] <= matrices.shape[2] else matrices.mT @ matrices
    gram.diagonal(dim1=-2, dim2=-1).sub_(scale)
    return gram
