"""Singular values, of matrices and from Gram matrices summed over batches."""

import torch
from torch import Tensor

from lightning_fire.functional.checks import real


def singular_values(matrix: Tensor) -> Tensor:
    """Return the singular values of each matrix; entries may be tiny or huge.

    Args:
        matrix: Shape `(..., m, n)`, real floating dtype, finite.

    Returns:
        Shape `(..., min(m, n))`, descending; float32, or float64 for float64 input.

    Raises:
        TypeError: If `matrix` is not of a real floating dtype.
        ValueError: If `matrix` has fewer than 2 dimensions, or a NaN or Inf.

    Example:
        >>> import torch
        >>> singular_values(torch.tensor([[0.0, 2.0], [3.0, 0.0]]))
        tensor([3., 2.])
    """
    matrix = _finite(real(matrix, "matrix"), "matrix")
    if matrix.numel() == 0:
        return matrix.new_zeros(*matrix.shape[:-2], min(matrix.shape[-2:]))
    largest = _largest_entry(matrix)
    return torch.linalg.svdvals(matrix / largest) * largest.squeeze(-1)


def singular_values_of_gram(gram: Tensor) -> Tensor:
    """Return the singular values of F from its Gram matrix FᵀF, which can be summed over batches of rows.

    Squaring costs half of the digits: singular values below about √(n·ε) σ_max, 1e-8 to 1e-7 σ_max in float64, are lost
    in rounding and returned as 0.

    Args:
        gram: Shape `(..., n, n)`, symmetric and positive semi-definite, finite; float64 advised.

    Returns:
        Shape `(..., n)`, descending; float32, or float64 for float64 input.

    Raises:
        TypeError: If `gram` is not of a real floating dtype.
        ValueError: If `gram` is not square or has a NaN or Inf.

    Example:
        >>> import torch
        >>> features = torch.tensor([[0.0, 2.0], [3.0, 0.0], [4.0, 0.0]])
        >>> singular_values_of_gram(features.mT @ features)
        tensor([5., 2.])
    """
    gram = _finite(real(gram, "gram"), "gram")
    if gram.shape[-1] != gram.shape[-2]:
        raise ValueError(f"`gram` must be square, got shape {tuple(gram.shape)}")
    if gram.numel() == 0:
        return gram.new_zeros(gram.shape[:-1])
    largest = _largest_entry(gram)
    eigenvalues = torch.linalg.eigvalsh(gram / largest).flip(-1)
    noise = gram.shape[-1] * torch.finfo(gram.dtype).eps * eigenvalues[..., :1]
    return torch.where(eigenvalues > noise, eigenvalues, 0.0).sqrt() * largest.squeeze(-1).sqrt()


def _largest_entry(matrix: Tensor) -> Tensor:
    """Shape `(..., 1, 1)`; 1 for a matrix of zeros."""
    largest = matrix.abs().amax((-2, -1), keepdim=True)
    return largest.masked_fill(largest == 0, 1.0)


def _finite(matrix: Tensor, name: str) -> Tensor:
    if not matrix.isfinite().all():
        raise ValueError(f"`{name}` must be finite, got a NaN or Inf in shape {tuple(matrix.shape)}")
    return matrix
