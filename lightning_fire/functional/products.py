"""Polar factors by matrix products alone, for devices on which a singular value decomposition is slow.

A fixed sequence of odd polynomials of degree five maps every singular value to 1, without waiting for the device. The
first, repeated, is the best approximation of 1 on [0.03, 1], divided by its maximum: it multiplies small singular
values by 4.1 and leaves none of the others below 0.12, so that rounding errors do not grow. Each of the next three is
the best approximation on the range that is left (Remez; as in Polar Express, Amsel et al., arXiv 2505.16932).

The error against the true factor is that of a singular value decomposition, the rounding error times the condition
number. Noise below rounding is added first, and the sequence is long enough to map its singular values to 1, too, so
that a rank-deficient matrix is completed. Matrices much taller than wide are first decomposed into Q R.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from lightning_fire.functional.metrics import less_identity, small_gram
from lightning_fire.functional.newton_schulz import COEFFICIENTS, composed, moderate, polar_factor, unit_norm

RISING = (4.09603, -11.31287, 8.10523)  # maps [0.03, 1.01] into [0.123, 1.00001]
FINISH = (
    (3.72916, -8.68104, 5.8778),  # into [0.44, 1.00001]
    (2.71749, -3.58889, 1.85819),  # into [0.92, 1.00001]
    (1.95304, -1.41091, 0.45791),  # 1 ± 5e-5
    (1.875, -1.25, 0.375),  # 1 ± 2e-13, the Taylor polynomial of its degree
    COEFFICIENTS["cubic"],  # 1, within rounding: ‖QᵀQ − I‖_F / √r is about 3e-7 in float32
)
REPEATS = {torch.float32: 22, torch.float64: 36}  # of the first: from 1e-15 and 3e-24 on, singular values get to 1
_NOISE = 0.1  # length of its rows or columns, the longer ones, in ε of the norm of the matrix
_LONG = 8  # ratio of the sides from which a decomposition into Q R pays
_MISSED = 1e-3  # ‖QᵀQ − I‖_F / √r from which a factor is computed again; one direction of 10⁶ alone would leave as much


def by_products(x: Tensor) -> Tensor:
    """Return U Vᵀ of each matrix X = U diag(σ) Vᵀ, completed if rank-deficient; zero stays zero. No device wait."""
    long, short = max(x.shape[-2:]), min(x.shape[-2:])
    if long >= _LONG * short and x.numel() == long * short:
        tall = moderate(x if x.shape[-2] == long else x.mT)
        basis, rest = torch.linalg.qr(tall)
        with float32_products(x.device):
            q: Tensor = basis @ by_products(rest)
        return (q if x.shape[-2] == long else q.mT).contiguous()
    zero = x.abs().amax((-2, -1), keepdim=True) == 0
    noise = torch.randn(x.shape, generator=torch.Generator(x.device).manual_seed(0), dtype=x.dtype, device=x.device)
    start = unit_norm(x.contiguous()).add(noise, alpha=_NOISE * torch.finfo(x.dtype).eps / long**0.5)
    with float32_products(x.device):
        return composed(start, [RISING] * REPEATS[x.dtype] + list(FINISH)).masked_fill(zero, 0.0)


def corrected(q: Tensor, x: Tensor) -> Tensor:
    """Replace each factor Q of X that is not an isometry by the result of `by_svd`. Waits for the device."""
    missed = is_missed(q) & (x != 0).flatten(-2).any(-1)
    return q.masked_scatter(missed[..., None, None], by_svd(x[missed])) if missed.any() else q


def by_svd(x: Tensor) -> Tensor:
    """Like `by_products`, by a singular value decomposition."""
    return polar_factor(unit_norm(x.contiguous()))


def is_missed(q: Tensor) -> Tensor:
    """Return for each matrix whether it is not an isometry; True for NaN and zero matrices."""
    with float32_products(q.device):
        rest = less_identity(small_gram(q))
    missed: Tensor = ~(torch.linalg.matrix_norm(rest) <= _MISSED * rest.shape[-1] ** 0.5)
    return missed


@contextmanager
def float32_products(device: torch.device) -> Iterator[None]:
    """Context manager: products of float32 matrices on a GPU are computed in float32, not in TF32."""
    backend = torch.backends.cuda.matmul
    name, full = ("fp32_precision", "ieee") if hasattr(backend, "fp32_precision") else ("allow_tf32", False)
    if device.type != "cuda" or (before := getattr(backend, name)) in ("none", full):
        yield
        return
    setattr(backend, name, full)
    try:
        yield
    finally:
        setattr(backend, name, before)
