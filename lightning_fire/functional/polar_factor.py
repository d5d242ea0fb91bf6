"""The polar factor of a matrix, the nearest one with orthonormal rows or columns, in two ways.

Both end with cubic Newton–Schulz steps, which square the deviation from orthonormality: ‖QᵀQ − I‖_F / √r is about 3e-7
in float32 after them. A wide matrix is treated as its transpose.
"""

import math

import torch
from torch import Tensor

from lightning_fire.functional.newton_schulz import COEFFICIENTS, newton_schulz
from lightning_fire.functional.symmetric_product import symmetric_product

_GAP = 0.02  # singular values below this share of the largest wait for the next round
_SMALL = 32  # columns up to which a round takes longer than a singular value decomposition
_NOISE = 1e-9  # in the place of zeros, as a share of the largest entry: far below rounding


def polar_factor_by_svd(x: Tensor) -> Tensor:
    """Return U Vᵀ of each X = U diag(σ) Vᵀ.

    Args:
        x: Shape `(..., m, n)`, finite, not empty.

    Returns:
        Shape `(..., m, n)`; rank-deficient matrices are completed, those of zeros too.
    """
    u, _, vh = torch.linalg.svd(x, full_matrices=False)
    return newton_schulz(u @ vh, 1, COEFFICIENTS["cubic"])


def polar_factor_by_deflation(x: Tensor) -> Tensor:
    """Return U Vᵀ of a matrix X = U diag(σ) Vᵀ, from eigendecompositions of Gram matrices.

    The eigenvectors V of XᵀX belong to large σ reliably, to small ones not: squaring loses those below √ε σ_max. So the
    columns of X V that belong to large σ are divided by their lengths, and the others, made orthogonal to them, are a
    smaller matrix with a σ_max of its own, which is treated likewise.

    Args:
        x: Shape `(m, n)`, finite, not empty.

    Returns:
        Shape `(m, n)`; rank-deficient matrices are completed. By `polar_factor_by_svd` where the result would not be
        orthonormal.
    """
    tall = x.shape[-2] >= x.shape[-1]
    y = x if tall else x.mT
    columns, rotation = _deflated(_without_zeros(y))
    error = 0.01
    if columns.shape[0] > 3 * columns.shape[1]:  # products of the short side are cheap: polish before multiplying out
        factor, error = _cubic_factor(rotation.mT @ symmetric_product(columns, columns) @ rotation)
        rotation = rotation @ factor
    q = columns @ rotation
    del columns
    q = _polished(q, error)
    if q is None:
        q = polar_factor_by_svd(y)
    return q if tall else q.mT


def cheaper_by_deflation(m: int, n: int) -> bool:
    """Tell whether deflation takes less time than a singular value decomposition, on a CPU (measured, float32, MKL).

    Args:
        m: Rows.
        n: Columns.
    """
    return min(m, n) >= 192


def _without_zeros(y: Tensor) -> Tensor:
    """Put noise in the place of zeros, so that the images of null vectors have directions; the same one each time."""
    if y.count_nonzero() == y.numel():
        return y
    noise = torch.randn(y.shape, generator=torch.Generator().manual_seed(0), dtype=y.dtype)
    return torch.where(y == 0, noise * (_NOISE * y.abs().amax()), y)


def _deflated(y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the polar factor of a tall matrix as a product of two with orthonormal columns, to 1e-4 in most cases."""
    if y.shape[-1] <= _SMALL:
        u, _, vh = torch.linalg.svd(y, full_matrices=False)
        return u, vh
    eigenvalues, vectors = torch.linalg.eigh(symmetric_product(y, y))
    y = y @ vectors
    split = int((eigenvalues < _GAP**2 * eigenvalues[-1]).sum())
    small, large = y[:, :split], y[:, split:]
    large /= large.norm(dim=0)
    if 0 < split < len(eigenvalues):
        small.addmm_(large, large.mT @ small, alpha=-1)
        small /= small.norm().clamp_min(torch.finfo(small.dtype).tiny)
        small.copy_(torch.mm(*_deflated(small)))
        small.addmm_(large, large.mT @ small, alpha=-1)
    return y, vectors.mT


def _polished(q: Tensor, error: float) -> Tensor | None:
    """Take cubic steps until Q is orthonormal to rounding; None where it is too far from that, or NaN.

    Args:
        q: Shape `(m, n)`.
        error: Estimate of ‖QᵀQ − I‖_F / √n.
    """
    goal = 4 * torch.finfo(q.dtype).eps
    while goal <= error < 0.1:
        factor, error = _cubic_factor(symmetric_product(q, q))
        q = q @ factor
    return q if error < goal else None


def _cubic_factor(gram: Tensor) -> tuple[Tensor, float]:
    """Return 1.5 I − 0.5 QᵀQ from QᵀQ, and a bound on ‖QᵀQ − I‖_F / √r after Q has been multiplied by it."""
    gram.diagonal().sub_(1)
    norm = float(gram.norm())
    gram.mul_(-0.5).diagonal().add_(1)
    return gram, 0.75 * norm**2 / math.sqrt(len(gram)) if norm < 1 else math.inf
