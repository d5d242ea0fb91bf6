"""What the singular values of a weight tell, also what FIRE would do to it."""

from dataclasses import dataclass
from math import prod, sqrt
from typing import Literal

import torch
from torch import Tensor

from lightning_fire.functional import as_matrices
from lightning_fire.functional.newton_schulz import COEFFICIENTS, newton_schulz
from lightning_fire.functional.orthogonal import Coefficients, Scale

QUANTILES = (0.0, 0.1, 0.5, 0.9, 1.0)


@dataclass(frozen=True)
class Health:
    """Measures of one weight. Of a convolution, a matrix for each kernel position.

    Attributes:
        dfi_normalized: Deviation from isometry that knows neither shape nor scale, see `functional.dfi_normalized`;
            mean over the positions.
        condition: Largest singular value by the smallest, of min(out, in) of them; the worst of the positions. Inf
            where the smallest is 0 up to rounding.
        stable_rank: ‖W‖_F² / σ_max², between 1 and min(out, in); mean over the positions. 0 for a matrix of zeros.
        norm: ‖W‖_F of the whole weight.
        sfe_normalized: ‖W − FIRE(W)‖_F² / ‖W‖_F² of the whole weight: what FIRE would cost. Inf for a weight of zeros
            that FIRE would change.
        quantiles: Of the singular values of all positions together, at `QUANTILES`.
    """

    dfi_normalized: float
    condition: float
    stable_rank: float
    norm: float
    sfe_normalized: float
    quantiles: tuple[float, ...]


@torch.no_grad()
def health(
    weight: Tensor,
    steps: int | Literal["exact"] = 10,
    coefficients: Coefficients = "cubic",
    scale: Scale = "paper",
) -> Health | None:
    """Measure one weight, in float64, by a singular value decomposition.

    FIRE keeps singular vectors, so that the singular values alone tell how far it would move a weight: σ becomes
    s·f(σ), where f is the iteration and s the scale.

    Args:
        weight: Shape `(out, in, *kernel)`, real floating dtype, not empty.
        steps: See `functional.fire`.
        coefficients: Likewise.
        scale: Likewise.

    Returns:
        The measures; None if `weight` holds a NaN or Inf.

    Example:
        >>> measured = health(torch.diag(torch.tensor([1.0, 3.0])), steps="exact")
        >>> measured.condition, round(measured.sfe_normalized, 6)  # (1 − 1)² + (3 − 1)², by 1² + 3²
        (3.0, 0.4)
    """
    if not torch.isfinite(weight).all():
        return None
    sigma = torch.linalg.svdvals(as_matrices(weight.double()))[0]  # (positions, r), the largest first
    squares = sigma.square()
    total, mean = squares.sum(), squares.mean(-1, keepdim=True)
    zero = mean == 0
    deviation = torch.where(zero, 1.0, (squares / mean.masked_fill(zero, 1.0) - 1).square().mean(-1, keepdim=True))
    ranks = squares.sum(-1) / squares[:, 0].masked_fill(zero[:, 0], 1.0)
    new = _after(sigma, steps, coefficients) * _scale(sigma, weight.shape, steps, coefficients, scale)
    error = (sigma - new).square().sum()
    smallest, largest = sigma[:, -1], sigma[:, 0]
    rounding = torch.finfo(sigma.dtype).eps * max(weight.shape[:2])
    conditions = torch.where(smallest <= rounding * largest, torch.inf, largest / smallest)
    return Health(
        dfi_normalized=deviation.mean().item(),
        condition=conditions.max().item(),
        stable_rank=ranks.mean().item(),
        norm=total.sqrt().item(),
        sfe_normalized=torch.where(error == 0, 0.0, error / total).item(),
        quantiles=tuple(_quantiles(sigma.flatten())),
    )


def _after(sigma: Tensor, steps: int | Literal["exact"], coefficients: Coefficients) -> Tensor:
    """Singular values after the iteration, before the scale; those of a matrix of zeros stay zero."""
    norm = torch.linalg.vector_norm(sigma, dim=-1, keepdim=True)
    if steps == "exact":
        return torch.ones_like(sigma).masked_fill(norm == 0, 0.0)
    start = (sigma / norm.masked_fill(norm == 0, 1.0))[..., None, None]  # as matrices of one entry
    return newton_schulz(start, steps, COEFFICIENTS[coefficients])[..., 0, 0]


def _scale(sigma: Tensor, shape: torch.Size, steps: int | Literal["exact"], coefficients: Coefficients, scale: Scale):
    if scale == "paper":
        return sqrt(shape[0] / shape[1]) / prod(shape[2:])
    if scale == "none":
        return 1.0
    new = _after(sigma, steps, coefficients)
    size = new.square().sum(-1, keepdim=True)
    return (sigma * new).sum(-1, keepdim=True) / size.masked_fill(size == 0, 1.0)


def _quantiles(values: Tensor) -> list[float]:
    """Nearest-rank quantiles: `torch.quantile` takes no more than 16 million values."""
    ordered = values.sort().values
    return [ordered[round(fraction * (len(ordered) - 1))].item() for fraction in QUANTILES]
