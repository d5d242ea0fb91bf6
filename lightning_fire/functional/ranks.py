"""Ranks: numbers of directions used by a matrix of features or weights.

Each rank comes twice: of a matrix, and `…_of` singular values, shape `(..., r)`, at least 0, finite, in any order. All
are scale-invariant, and 0 for a matrix of zeros or without entries. A *matrix* has shape `(..., m, n)`, for features
`(..., samples, features)`, which are not centred; a dtype that is not real floating raises a TypeError; fewer than 2
dimensions, a NaN or Inf, or a δ out of range a ValueError. Results are float32, or float64 for float64 input.
"""

import torch
from torch import Tensor

from lightning_fire.functional.checks import finite, full_precision, precise, real
from lightning_fire.functional.metrics import small_gram

_EPS = 1e-8


@full_precision
def srank(matrix: Tensor, delta: float = 0.01) -> Tensor:
    """Effective rank: the least k for which the k largest singular values sum to at least 1 − δ of the sum of all.

    Source: Kumar et al., Implicit under-parameterization inhibits data-efficient deep reinforcement learning, ICLR
    2021; paper, theorem "DfI controls effective rank".

    Args:
        matrix: Shape `(..., m, n)`.
        delta: δ, the fraction that may be missing, in [0, 1).

    Returns:
        Shape `(...)`, int64, in [0, min(m, n)].

    Example:
        >>> srank(torch.diag(torch.tensor([50.0, 49.0, 0.6, 0.4])), delta=0.01)
        tensor(2)
    """
    return srank_of(singular_values(matrix), delta)


def srank_of(values: Tensor, delta: float = 0.01) -> Tensor:
    """`srank` from singular values; equal up to rounding counts as reached.

    Example:
        >>> srank_of(torch.ones(5), delta=0.4)  # ⌈(1 − δ)·5⌉
        tensor(3)
    """
    if not 0 <= delta < 1:
        raise ValueError(f"`delta` must be at least 0 and below 1, got {delta}")
    held = _relative(values).sort(-1, descending=True).values.double().cumsum(-1)
    rounding = values.shape[-1] * torch.finfo(values.dtype).eps
    return (held < (1 - delta - rounding) * held[..., -1:]).sum(-1) + held[..., -1:].gt(0).sum(-1)


@full_precision
def stable_rank(matrix: Tensor) -> Tensor:
    """Stable rank ‖W‖_F² / σ_max²: the number of directions as strong as the strongest.

    Source: Rudelson and Vershynin, Sampling from large matrices, Journal of the ACM 54(4), 2007.

    Args:
        matrix: Shape `(..., m, n)`.

    Returns:
        Shape `(...)`, in [1, min(m, n)], or 0.

    Example:
        >>> stable_rank(torch.diag(torch.tensor([2.0, 1.0, 1.0])))
        tensor(1.5000)
    """
    return stable_rank_of(singular_values(matrix))


def stable_rank_of(values: Tensor) -> Tensor:
    """`stable_rank` from singular values.

    Example:
        >>> stable_rank_of(torch.tensor([2.0, 1.0, 1.0]))
        tensor(1.5000)
    """
    return _relative(values).square().sum(-1)


@full_precision
def entropy_rank(matrix: Tensor) -> Tensor:
    """Exponential of the entropy of σ / Σσ: the number of equal singular values with the same entropy.

    Source: Roy and Vetterli, The effective rank: a measure of effective dimensionality, EUSIPCO 2007.

    Args:
        matrix: Shape `(..., m, n)`.

    Returns:
        Shape `(...)`, in [1, min(m, n)], or 0.

    Example:
        >>> entropy_rank(torch.diag(torch.tensor([3.0, 3.0, 0.0])))
        tensor(2.)
    """
    return entropy_rank_of(singular_values(matrix))


def entropy_rank_of(values: Tensor) -> Tensor:
    """`entropy_rank` from singular values.

    Example:
        >>> entropy_rank_of(torch.tensor([3.0, 3.0, 0.0]))
        tensor(2.)
    """
    relative = _relative(values)
    total = relative.sum(-1, keepdim=True)
    entropy = torch.special.entr(relative / total.masked_fill(total == 0, 1.0)).sum(-1)
    return torch.where(total.squeeze(-1) == 0, 0.0, entropy.exp())


def entropy_rank_gradient(matrix: Tensor) -> Tensor:
    """Gradient of `entropy_rank` with respect to the matrix; 0 for a matrix of zeros.

    The slope of −p·log p is unbounded at p = 0, so −p·log(p + 1e-8) is differentiated instead. Along singular vectors
    of singular values 0, which are not unique, the gradient is not unique.

    Source: Prakash et al., Spectral collapse drives loss of plasticity in deep continual learning, ICML 2026, whose
    public code differentiates this.

    Args:
        matrix: F = U·diag(σ)·Vᵀ, shape `(..., m, n)`.

    Returns:
        U·diag(∂rank/∂σ)·Vᵀ, shape `(..., m, n)`.

    Example:
        >>> entropy_rank_gradient(torch.diag(torch.tensor([3.0, 3.0]))).round(decimals=4) + 0.0
        tensor([[0., 0.],
                [0., 0.]])
        >>> bool(entropy_rank_gradient(torch.diag(torch.tensor([3.0, 1.0])))[1, 1] > 0)  # the weaker direction grows
        True
    """
    return entropy_rank_gradient_of_finite(finite(matrix, "matrix"))


@full_precision
def entropy_rank_gradient_of_finite(matrix: Tensor) -> Tensor:
    """`entropy_rank_gradient` of a finite matrix: on a GPU it waits only for the decomposition."""
    matrix = real(matrix, "matrix")
    if matrix.numel() == 0:
        return torch.zeros_like(matrix)
    largest = _largest_entry(matrix)
    left, values, right = torch.linalg.svd(matrix / largest, full_matrices=False)
    total = values.sum(-1, keepdim=True)
    total = total.masked_fill(total == 0, 1.0)
    relative = values / total
    slope = -(relative + _EPS).log() - relative / (relative + _EPS)  # of the entropy by each p
    slope = slope - (relative * slope).sum(-1, keepdim=True)  # p = σ / Σσ
    rank = (-relative * (relative + _EPS).log()).sum(-1, keepdim=True).exp()
    gradient = (left * (rank * slope / total).unsqueeze(-2)) @ right / largest
    return torch.where(values[..., :1, None] > 0, gradient, 0.0)


def singular_values(matrix: Tensor) -> Tensor:
    """Singular values of each matrix; entries may be tiny or huge.

    Args:
        matrix: Shape `(..., m, n)`.

    Returns:
        Shape `(..., min(m, n))`, descending.

    Example:
        >>> singular_values(torch.tensor([[0.0, 2.0], [3.0, 0.0]]))
        tensor([3., 2.])
    """
    return singular_values_of_finite(finite(matrix, "matrix"))


@full_precision
def singular_values_of_finite(matrix: Tensor) -> Tensor:
    """`singular_values` of a finite matrix: on a GPU it waits only for the decomposition."""
    matrix = real(matrix, "matrix")
    if matrix.numel() == 0:
        return matrix.new_zeros(*matrix.shape[:-2], min(matrix.shape[-2:]))
    largest = _largest_entry(matrix)
    if matrix.is_cuda and matrix.dtype == torch.float32:  # 4 times as fast, and as exact as float32 is
        gram = small_gram((matrix / largest).double())
        return singular_values_of_finite_gram(gram).to(matrix.dtype) * largest.squeeze(-1)
    values: Tensor = torch.linalg.svdvals(matrix / largest)
    return values * largest.squeeze(-1)


def singular_values_of_gram(gram: Tensor) -> Tensor:
    """Singular values of F from its Gram matrix FᵀF, which can be summed over batches of rows.

    Squaring costs half of the digits: singular values below about √(n·ε) σ_max, 1e-8 to 1e-7 σ_max in float64, are lost
    in rounding and returned as 0.

    Args:
        gram: Shape `(..., n, n)`, symmetric and positive semi-definite; float64 advised. If not square, a ValueError.

    Returns:
        Shape `(..., n)`, descending.

    Example:
        >>> features = torch.tensor([[0.0, 2.0], [3.0, 0.0], [4.0, 0.0]])
        >>> singular_values_of_gram(features.mT @ features)
        tensor([5., 2.])
    """
    gram = finite(gram, "gram")
    if gram.shape[-1] != gram.shape[-2]:
        raise ValueError(f"`gram` must be square, got shape {tuple(gram.shape)}")
    return singular_values_of_finite_gram(gram)


@full_precision
def singular_values_of_finite_gram(gram: Tensor) -> Tensor:
    """`singular_values_of_gram` of a finite square matrix."""
    if gram.numel() == 0:
        return gram.new_zeros(gram.shape[:-1])
    largest = _largest_entry(gram)
    eigenvalues = torch.linalg.eigvalsh(gram / largest).flip(-1)
    noise = gram.shape[-1] * torch.finfo(gram.dtype).eps * eigenvalues[..., :1]
    return torch.where(eigenvalues > noise, eigenvalues, 0.0).sqrt() * largest.squeeze(-1).sqrt()


def _relative(values: Tensor) -> Tensor:
    """Singular values divided by the largest, `(..., max(r, 1))`, float32 at least; zeros stay zero."""
    values = precise(values)
    if values.shape[-1] == 0:
        return values.new_zeros(*values.shape[:-1], 1)
    largest = values.amax(-1, keepdim=True)
    return values / largest.masked_fill(largest == 0, 1.0)


def _largest_entry(matrix: Tensor) -> Tensor:
    """Shape `(..., 1, 1)`; 1 for a matrix of zeros."""
    largest = matrix.abs().amax((-2, -1), keepdim=True)
    return largest.masked_fill(largest == 0, 1.0)
