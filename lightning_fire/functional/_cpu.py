"""Newton–Schulz steps and polar factors on a CPU: faster algorithms that differ by rounding only.

Large matrices are computed one by one, each on one thread, by eigendecompositions of Gram matrices if these are cheaper
than steps or singular value decompositions. N steps are X ← X h(XᵀX) with a polynomial h, which is applied to the
eigenvalues of XᵀX. A wide matrix is transposed. Costs were measured (float32, MKL).
"""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import torch
from torch import Tensor

from lightning_fire.functional.newton_schulz import moderate, newton_schulz, polar_factor, unit_norm
from lightning_fire.functional.products import by_products, by_svd

_BLOCK = 128  # rows of a symmetric product at a time, fastest of 96 to 384
_STEEPEST = 80.0  # times ε this is 5e-6 in float32; measured errors are up to 4 times that, 9 with one dominant σ
_LEAST = 192  # short side from which deflation is faster than a singular value decomposition
_SMALL = 32  # short side up to which a pass of deflation is slower than a singular value decomposition
_GAP = 0.02  # singular values below this fraction of the largest wait for the next pass
_NOISE = 1e-9  # instead of zeros, as a fraction of the largest entry: far below rounding


def iterated(x: Tensor, steps: int, coefficients: tuple[float, ...]) -> Tensor:
    """Apply the paper's Algorithm 1 to finite matrices: steps from X / ‖X‖_F; return a new, contiguous tensor."""
    if not x.numel():
        return x.clone()
    if x.device.type != "cpu" or not spectrum_is_cheaper(x.shape[-2], x.shape[-1], steps, coefficients):
        return newton_schulz(unit_norm(x.contiguous()), steps, coefficients)

    def of_one(matrix: Tensor) -> Tensor:
        result = by_spectrum(matrix, steps, coefficients)
        return newton_schulz(unit_norm(matrix), steps, coefficients) if result is None else result

    return _one_by_one(of_one, x)


def projected(x: Tensor) -> Tensor:
    """Return the polar factors of finite matrices, zeros for zeros, as a new, contiguous tensor."""
    if not x.numel():
        return x.clone()
    if x.device.type != "cpu":
        return by_products(x)
    if min(x.shape[-2:]) < _LEAST:
        return by_svd(x)
    return _one_by_one(by_deflation, x)


def by_spectrum(x: Tensor, steps: int, coefficients: tuple[float, ...]) -> Tensor | None:
    """Return `newton_schulz` of X / ‖X‖_F, shape `(m, n)`, from the eigenvalues of the Gram matrix.

    The Gram matrix holds λ = σ² up to a rounding error of about ε λ_max, which is harmless where h is flat on that
    scale. Towards λ = 0, h rises to p(0)^N and is steep for many steps, and steeper for Muon's coefficients. Returns
    None if relative errors in float32 could exceed 2e-5.
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


def spectrum_is_cheaper(m: int, n: int, steps: int, coefficients: tuple[float, ...]) -> bool:
    """Return whether `by_spectrum` is likely to be accurate enough for an m × n matrix and faster than the steps.

    Costs in products of two r × r matrices, r = min(m, n): an eigendecomposition, with overhead, costs 5 of them for
    large r, and 5 + 4.5e5 / r² for small ones (r from 128 to 1024); 6e5 excludes shapes with an uncertain gain.
    """
    short = min(m, n)
    application = max(m, n) / short
    largest = 17 / short  # largest eigenvalue by the sum, where singular values fall evenly in log steps to 1e-4
    if _steepness(steps, coefficients) * min(largest, 1.0) > _STEEPEST:
        return False
    spectrum = 5 + 6e5 / short**2
    return spectrum + 1 + 2 * application < steps * (2 * application + len(coefficients) - 2)


def by_deflation(x: Tensor) -> Tensor:
    """Return U Vᵀ of a matrix X = U diag(σ) Vᵀ, completed if rank-deficient, by eigendecompositions of Gram matrices.

    The eigenvectors V of XᵀX are accurate for large σ but not for small ones: squaring loses those below √ε σ_max. So
    the columns of X V with large σ are divided by their lengths. The others, orthogonalized against them, form a
    smaller matrix with its own σ_max, which is treated in the same way. Cubic steps at the end square the deviation
    from orthonormality: ‖QᵀQ − I‖_F / √r is about 3e-7 in float32 after them.
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
    tolerance = 4 * torch.finfo(q.dtype).eps
    while tolerance <= error < 0.1:
        factor, error = _cubic_factor(symmetric_product(q, q))
        q = q @ factor
    if not error < tolerance:  # too far from orthonormal for cubic steps, or NaN
        q = polar_factor(y)
    return q if tall else q.mT


def symmetric_product(a: Tensor, b: Tensor) -> Tensor:
    """Return a symmetric product AᵀB; only its lower half is computed, in 0.7 times the time for large n."""
    size = a.shape[-1]
    result = a.new_empty(size, size)
    for start in range(0, size, _BLOCK):
        stop = min(start + _BLOCK, size)
        torch.mm(a[:, start:stop].mT, b[:, :stop], out=result[start:stop, :stop])
        result[:start, start:stop] = result[start:stop, :start].mT
    return result


def _one_by_one(of_one: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Apply a scale-invariant function to each matrix, one thread per matrix; zeros stay zeros."""

    def safely(matrix: Tensor) -> Tensor:
        low, high = (float(value) for value in matrix.aminmax())
        largest = max(-low, high)
        if largest == 0:
            return torch.zeros_like(matrix)
        return of_one(matrix if 1e-9 < largest < 1e9 else moderate(matrix))

    if x.shape[:-2].numel() == 1:  # left to PyTorch's threads
        return safely(x.reshape(x.shape[-2:])).reshape(x.shape).contiguous()
    result = x.clone(memory_format=torch.contiguous_format)
    _one_thread_each(lambda matrix: matrix.copy_(safely(matrix)), result.flatten(0, -3).unbind())
    return result


def _one_thread_each(function: Callable[[Tensor], object], tensors: tuple[Tensor, ...]) -> None:
    """Call a function for each tensor, on as many threads as PyTorch has, with kernels of one thread.

    A single eigendecomposition gains almost nothing from several threads. Results do not depend on their number.
    """
    threads, inference = torch.get_num_threads(), torch.is_inference_mode_enabled()
    if threads == 1:
        for tensor in tensors:
            function(tensor)
        return

    def in_mode_of_caller(tensor: Tensor) -> None:
        with torch.inference_mode(inference):
            function(tensor)

    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            list(pool.map(in_mode_of_caller, tensors))
    finally:
        torch.set_num_threads(threads)  # MKL has one global number of threads


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
    """Return the maximum over λ in [0, 1] of √λ |h'(λ)|: how much an error in λ moves a singular value."""
    if steps > 50:
        return math.inf  # h(0) is then above 1e8
    flat = -2 * steps * math.log10(coefficients[0]) - 3
    points = torch.logspace(flat, 0, int(-flat / 0.002), dtype=torch.float64, device="cpu")  # 0.5 % apart
    slopes = _polynomial(points, steps, coefficients).diff() / points.diff()
    return float((points[1:].sqrt() * slopes.abs()).max())


def _largest_eigenvalue(gram: Tensor) -> float:
    """Estimate the largest eigenvalue of a symmetric matrix from below, mostly within a few per cent."""
    vector = gram[:, gram.diagonal().argmax()]
    for _ in range(8):
        vector = gram @ (vector / vector.norm())
    return float(vector.norm())


def _without_zeros(y: Tensor) -> Tensor:
    """Replace zeros by noise, the same one each time, so that the images of null vectors have directions."""
    if y.count_nonzero() == y.numel():
        return y
    noise = torch.randn(y.shape, generator=torch.Generator("cpu").manual_seed(0), dtype=y.dtype, device="cpu")
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


def _cubic_factor(gram: Tensor) -> tuple[Tensor, float]:
    """Return 1.5 I − 0.5 QᵀQ from QᵀQ, and a bound on ‖QᵀQ − I‖_F / √r after Q has been multiplied by it."""
    gram.diagonal().sub_(1)
    norm = float(gram.norm())
    gram.mul_(-0.5).diagonal().add_(1)
    return gram, 0.75 * norm**2 / math.sqrt(len(gram)) if norm < 1 else math.inf
