"""Metrics of a weight from its singular values, and the effect that FIRE would have on it."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lightning_fire.functional import as_matrices, dfi_normalized, sfe_normalized, singular_values, stable_rank_of
from lightning_fire.functional.newton_schulz import COEFFICIENTS, newton_schulz, unit_norm
from lightning_fire.functional.orthogonal import Coefficients, Scale, rescale

QUANTILES = {"min": 0.0, "10%": 0.1, "median": 0.5, "90%": 0.9, "max": 1.0}


@dataclass(frozen=True)
class Health:
    """Metrics of one weight; of a convolution, a matrix for each kernel position.

    Attributes:
        dfi_normalized: Scale- and shape-invariant deviation from isometry, see `functional.dfi_normalized`; mean
            over the positions.
        condition: Ratio of the largest to the smallest of the min(out, in) singular values; the largest over the
            positions. Inf if the smallest is 0 up to rounding.
        stable_rank: ‖W‖_F² / σ_max², between 1 and min(out, in); mean over the positions. 0 for a matrix of zeros.
        norm: ‖W‖_F of the whole weight.
        sfe_normalized: ‖W − FIRE(W)‖_F² / ‖W‖_F² of the whole weight. Inf for a weight of zeros that FIRE would
            change.
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
    """Compute the metrics of one weight, in float64, by a singular value decomposition.

    FIRE keeps singular vectors, so the singular values determine how far it would move a weight: σ becomes s·f(σ),
    where f is the iteration and s the scale.

    Args:
        weight: Shape `(out, in, *kernel)`, real floating dtype, not empty.
        steps: See `functional.fire`.
        coefficients: See `functional.fire`.
        scale: See `functional.fire`.

    Returns:
        The metrics; None if `weight` holds a NaN or Inf.

    Example:
        >>> measured = health(torch.diag(torch.tensor([1.0, 3.0])), steps="exact")
        >>> measured.condition, round(measured.sfe_normalized, 6)  # (1 − 1)² + (3 − 1)², by 1² + 3²
        (3.0, 0.4)
    """
    if not torch.isfinite(weight).all():
        return None
    matrices = as_matrices(weight.double())[0]  # (positions, out, in)
    sigma = singular_values(matrices)  # (positions, r), the largest first
    if steps == "exact":
        new = torch.ones_like(sigma).masked_fill(sigma[:, :1] == 0, 0.0)
    else:
        start = unit_norm(sigma.unsqueeze(-1)).unsqueeze(-1)  # (positions, r, 1, 1): as matrices of one entry
        new = newton_schulz(start, steps, COEFFICIENTS[coefficients])[..., 0, 0]
    new = rescale(new.unsqueeze(-1), sigma.unsqueeze(-1), weight.shape, scale).squeeze(-1)
    largest, smallest = sigma[:, 0], sigma[:, -1]
    rounding = torch.finfo(sigma.dtype).eps * max(weight.shape[:2])
    ordered = sigma.flatten().sort().values  # `torch.quantile` takes no more than 16 million values
    return Health(
        dfi_normalized=dfi_normalized(matrices).mean().item(),
        condition=torch.where(smallest <= rounding * largest, torch.inf, largest / smallest).max().item(),
        stable_rank=stable_rank_of(sigma).mean().item(),
        norm=sigma.norm().item(),
        sfe_normalized=sfe_normalized(sigma, new).item(),
        quantiles=tuple(ordered[round(at * (len(ordered) - 1))].item() for at in QUANTILES.values()),
    )


def dfi_of_new(shape: tuple[int, ...]) -> float:
    """Return the expected normalised DfI of a new weight: of a matrix with independent Gaussian entries.

    With r the short and l the long side, ‖G‖_F² has the expectation r·l·(r + l + 1) and (tr G)² has r·l·(r·l + 2), and
    their ratio is independent of the norm. So it is r·(r + l + 1) / (r·l + 2) - 1, about r / l.

    Args:
        shape: Shape `(out, in, *kernel)`.

    Example:
        >>> round(dfi_of_new((512, 512)), 3), round(dfi_of_new((10, 64, 3, 3)), 3)
        (1.002, 0.168)
    """
    r, l = sorted(shape[:2])  # noqa: E741
    return r * (r + l + 1) / (r * l + 2) - 1
