"""Matrices of given singular values, and what a polar factor is."""

import math

import torch

SHAPES = [(200, 200), (420, 210), (200, 700)]
SPECTRA = {
    "condition 10": lambda r: torch.logspace(0, -1, r),
    "condition 1.6e4": lambda r: torch.logspace(0, -4.2, r),  # as in trained networks
    "condition 1e8": lambda r: torch.logspace(0, -8, r),
    "gaussian": lambda r: torch.linspace(1, 1e-4, r),
    "deficient": lambda r: torch.logspace(0, -2, r) * (torch.arange(r) < r // 2),
    "one huge": lambda r: torch.cat([torch.ones(1), torch.logspace(-2, -4, r - 1)]),
    "flat": torch.ones,
}


def matrix_of(shape: tuple[int, int], spectrum: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    r = min(shape)
    u, v = (torch.linalg.qr(torch.randn(n, r, generator=generator, dtype=torch.float64))[0] for n in shape)
    return (u * SPECTRA[spectrum](r).double() @ v.T).to(dtype)


def residual(q: torch.Tensor) -> float:
    q = (q if q.shape[0] >= q.shape[1] else q.T).double()
    return float((q.T @ q - torch.eye(q.shape[1])).norm()) / math.sqrt(q.shape[1])


def assert_nearest_isometry(q: torch.Tensor, matrix: torch.Tensor, tolerance: float) -> None:
    """QᵀW is symmetric and positive semi-definite to `tolerance` of ‖W‖_F: true of polar factors only."""
    h = (q.double().T @ matrix.double()) if q.shape[0] >= q.shape[1] else (matrix.double() @ q.double().T)
    h = h / matrix.double().norm()
    assert (h - h.T).norm() <= tolerance
    assert torch.linalg.eigvalsh(h + h.T)[0] >= -tolerance
