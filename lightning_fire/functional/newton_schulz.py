"""Newton–Schulz: a fixed number of steps that move all singular values of a matrix towards 1, in two ways.

One step is X ← aX + bX(XᵀX) + cX(XᵀX)². It leaves singular vectors as they are and takes each singular value σ to
σp(σ²), with p(λ) = a + bλ + cλ². N steps therefore amount to X ← X h(XᵀX) with one polynomial h, of which

* `newton_schulz` takes the product step by step: 2N products of matrices or more, whole batches at once;
* `newton_schulz_by_spectrum` takes the value at each eigenvalue of XᵀX: one eigendecomposition and three products.

They differ by rounding only. Of a wide matrix they take the Gram matrix on the short side, XXᵀ.
"""

import math
from functools import lru_cache

import torch
from torch import Tensor

from lightning_fire.functional.symmetric_product import symmetric_product

COEFFICIENTS: dict[str, tuple[float, ...]] = {
    "cubic": (1.5, -0.5),  # paper, Algorithm 1, and all of the authors' code
    "quintic": (2.0, -1.5, 0.5),  # paper, appendix "Coefficients for Newton-Schulz iteration"
    "muon": (3.4445, -4.7750, 2.0315),  # same appendix; singular values end up near 1, not at 1
}

# times ε this is 5e-6 in float32; measured errors are up to 4 times that, or 9 with one σ far above all others
_STEEPEST = 80.0


def newton_schulz(x: Tensor, steps: int, coefficients: tuple[float, ...]) -> Tensor:
    """Iterate X ← aX + bX(XᵀX) + cX(XᵀX)²; the Gram matrix is taken on the short side.

    Args:
        x: Shape `(..., m, n)`, singular values at most 1; nothing is checked.
        steps: Number of iterations.
        coefficients: a, b and maybe c.
    """
    a, b, *c = coefficients
    tall = x.shape[-2] >= x.shape[-1]
    y = x.reshape(-1, *x.shape[-2:])
    y, add_product = (y[0], torch.addmm) if len(y) == 1 else (y, torch.baddbmm)  # fewer calls than a batch of one
    for _ in range(steps):
        gram = y.mT @ y if tall else y @ y.mT
        if c:
            gram = add_product(gram, gram, gram, beta=b, alpha=c[0])
        y = add_product(y, *((y, gram) if tall else (gram, y)), beta=a, alpha=1 if c else b)
    return y.reshape(x.shape)


def newton_schulz_by_spectrum(x: Tensor, steps: int, coefficients: tuple[float, ...]) -> Tensor | None:
    """Return what `newton_schulz` makes of X / ‖X‖_F, from the eigenvalues of the Gram matrix.

    The Gram matrix holds λ = σ² up to a rounding error of about ε λ_max, which is harmless as far as h is flat on that
    scale. h rises to p(0)^N towards λ = 0, where it is steep for many steps, and steeper for Muon's coefficients.

    Args:
        x: Shape `(m, n)`, finite, not all zero, with squares of its entries within the range of its dtype.
        steps: Number of iterations.
        coefficients: a, b and maybe c.

    Returns:
        Shape `(m, n)`; or None where the rounding error would show: relative errors in float32 then pass 2e-5.
    """
    tall = x.shape[-2] >= x.shape[-1]
    y = x if tall else x.mT
    gram = symmetric_product(y, y)
    squared_norm = gram.trace()
    gram /= squared_norm
    steepness = _steepness(steps, coefficients)
    if steepness > _STEEPEST and steepness * _largest_eigenvalue(gram) > _STEEPEST:
        return None
    eigenvalues, vectors = torch.linalg.eigh(gram)
    factor = _polynomial(eigenvalues.double().clamp(min=0), steps, coefficients) / squared_norm.double().sqrt()
    polynomial = symmetric_product((vectors * factor.to(x.dtype)).mT, vectors.mT)
    return x @ polynomial if tall else polynomial @ x


def cheaper_by_spectrum(m: int, n: int, steps: int, coefficients: tuple[float, ...]) -> bool:
    """Tell whether the spectrum of a matrix is likely to be exact enough, and takes less time than the steps, on a CPU.

    Counted in products of two r × r matrices, with r = min(m, n). An eigendecomposition, with all calls around it,
    takes as long as 5 of them for large r, and as 5 + 4.5e5 / r² for small ones (measured, float32, MKL, r from 128 to
    1024); 6e5 leaves it where the gain is not sure.

    Args:
        m: Rows.
        n: Columns.
        steps: Number of iterations.
        coefficients: a, b and maybe c.
    """
    short, long = min(m, n), max(m, n)
    application = long / short
    spectrum = 5 + 6e5 / short**2
    share = 17 / short  # of the largest eigenvalue in all, where singular values fall evenly in log steps to 1e-4
    if _steepness(steps, coefficients) * min(share, 1.0) > _STEEPEST:
        return False
    return spectrum + 1 + 2 * application < steps * (2 * application + len(coefficients) - 2)


def unit_norm(x: Tensor) -> Tensor:
    """Divide each matrix by its Frobenius norm, safely for entries of any size; zero stays zero.

    Args:
        x: Shape `(..., m, n)`, finite.
    """
    if x.device.type == "cpu":
        norm = torch.linalg.matrix_norm(x, keepdim=True)
        if 1e-9 < float(norm.min()) <= float(norm.max()) < 1e9:  # squares were in range
            return x / norm
    x = moderate(x)
    norm = torch.linalg.matrix_norm(x, keepdim=True)
    return x / norm.masked_fill(norm == 0, 1.0)


def moderate(x: Tensor) -> Tensor:
    """Divide each matrix by a power of two, which is exact, so that its largest entry is in [1, 2); zero stays zero.

    Args:
        x: Shape `(..., m, n)`, finite.
    """
    largest = x.abs().amax((-2, -1), keepdim=True)
    power_of_two = largest / (2 * torch.frexp(largest).mantissa)
    return x / torch.where(largest == 0, 1.0, power_of_two)


def _polynomial(squares: Tensor, steps: int, coefficients: tuple[float, ...]) -> Tensor:
    """Return h(λ): the factor by which N steps multiply a singular value √λ."""
    a, b, *c = coefficients
    result = torch.ones_like(squares)
    for _ in range(steps):
        factor = a + b * squares + (c[0] * squares**2 if c else 0.0)
        result, squares = result * factor, squares * factor**2
    return result


@lru_cache
def _steepness(steps: int, coefficients: tuple[float, ...]) -> float:
    """Return the maximum over λ in [0, 1] of √λ |h'(λ)|: how much an error in λ moves a singular value.

    From differences between points 0.5 % apart, down to where h is flat.
    """
    if steps > 50:
        return math.inf  # h(0) is then above 1e8
    flat = -2 * steps * math.log10(coefficients[0]) - 3
    points = torch.logspace(flat, 0, int(-flat / 0.002), dtype=torch.float64)
    slopes = _polynomial(points, steps, coefficients).diff() / points.diff()
    return float((points[1:].sqrt() * slopes.abs()).max())


def _largest_eigenvalue(gram: Tensor) -> float:
    """Estimate the largest eigenvalue of a symmetric matrix from below, mostly within a few per cent."""
    vector = gram[:, gram.diagonal().argmax()]
    for _ in range(8):
        vector = gram @ (vector / vector.norm())
    return float(vector.norm())
