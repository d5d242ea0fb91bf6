"""Newton–Schulz iteration (paper, Algorithm 1) and its limit, the polar factor: batches of matrices, any device.

One step is X ← aX + bX(XᵀX) + cX(XᵀX)². It leaves singular vectors as they are and takes each singular value σ to
σp(σ²), with p(λ) = a + bλ + cλ².
"""

from collections.abc import Sequence

import torch
from torch import Tensor

COEFFICIENTS: dict[str, tuple[float, ...]] = {
    "cubic": (1.5, -0.5),  # paper, Algorithm 1, and all of the authors' code
    "quintic": (2.0, -1.5, 0.5),  # paper, appendix "Coefficients for Newton-Schulz iteration"
    "muon": (3.4445, -4.7750, 2.0315),  # same appendix; singular values end up near 1, not at 1
}


def newton_schulz(x: Tensor, steps: int, coefficients: tuple[float, ...]) -> Tensor:
    """Take steps from X of shape (..., m, n), whose singular values must be at most 1 (see `unit_norm`)."""
    return composed(x, [coefficients] * steps)


def composed(x: Tensor, polynomials: Sequence[tuple[float, ...]]) -> Tensor:
    """Take a step of each polynomial in turn, given by its coefficients (a, b) or (a, b, c)."""
    tall = x.shape[-2] >= x.shape[-1]
    y = x.reshape(-1, *x.shape[-2:])
    y, add_product = (y[0], torch.addmm) if len(y) == 1 else (y, torch.baddbmm)  # fewer calls than a batch of one
    for a, b, *c in polynomials:
        gram = y.mT @ y if tall else y @ y.mT
        if c:
            gram = add_product(gram, gram, gram, beta=b, alpha=c[0])
        y = add_product(y, *((y, gram) if tall else (gram, y)), beta=a, alpha=1 if c else b)
    return y.reshape(x.shape)


def polar_factor(x: Tensor) -> Tensor:
    """Return U Vᵀ of each X = U diag(σ) Vᵀ, completed if rank-deficient, polished by a cubic step; zero stays zero."""
    u, _, vh = torch.linalg.svd(x, full_matrices=False)
    zero = x.abs().amax((-2, -1), keepdim=True) == 0
    return newton_schulz(u @ vh, 1, COEFFICIENTS["cubic"]).masked_fill(zero, 0.0)


def unit_norm(x: Tensor) -> Tensor:
    """Divide each matrix by its Frobenius norm, safely for finite entries of any size; zero stays zero."""
    if not x.numel():
        return x
    if x.device.type == "cpu":
        norm: Tensor = torch.linalg.matrix_norm(x, keepdim=True)
        if 1e-9 < float(norm.min()) <= float(norm.max()) < 1e9:  # squares were in range
            return x / norm
    x = moderate(x)
    norm = torch.linalg.matrix_norm(x, keepdim=True)
    return x / norm.masked_fill(norm == 0, 1.0)


def moderate(x: Tensor) -> Tensor:
    """Divide each matrix by a power of two, which is exact, so that its largest entry is in [1, 2); zero stays zero."""
    return x / power_of_two(x)


def power_of_two(x: Tensor) -> Tensor:
    """Return the largest power of two, `(..., 1, 1)`, not above the largest entry of each matrix; 1 for zeros."""
    largest = x.abs().amax((-2, -1), keepdim=True)
    return torch.where(largest == 0, 1.0, largest / (2 * torch.frexp(largest).mantissa))
