"""Metrics of a weight from its singular values, and the effect of FIRE on it."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import exp, inf, isfinite, log, nan
from typing import Literal

import torch
from torch import Tensor

from lightning_fire.functional import as_matrices, dfi_normalized, sfe_normalized, singular_values, stable_rank_of
from lightning_fire.functional.newton_schulz import COEFFICIENTS, newton_schulz, unit_norm
from lightning_fire.functional.orthogonal import Coefficients, Scale, rescale

QUANTILES = {"min": 0.0, "10%": 0.1, "median": 0.5, "90%": 0.9, "max": 1.0}
_LEAST = 0.01  # lower bound of ratios: one weight at an isometry must not dominate the mean


@dataclass(frozen=True)
class Diagnosis:
    """Metrics of one weight, over all matrices of a convolution or a stack. All are Inf if it has a NaN or Inf.

    Attributes:
        name: Its name in a checkpoint; a part of a fused weight ends with its letter.
        shape: Shape `(out, in, *kernel)`.
        dfi_reference: Normalized DfI of its reference.
        dfi_normalized: Scale- and shape-invariant deviation from isometry, see `functional.dfi_normalized`; mean
            over the matrices.
        condition: Ratio of the largest to the smallest of the min(out, in) singular values; the largest over the
            matrices. Inf if the smallest is 0 up to rounding.
        stable_rank: ‖W‖_F² / σ_max², between 1 and min(out, in); mean over the matrices. 0 for a matrix of zeros.
        norm: ‖W‖_F of the whole weight.
        sfe_normalized: ‖W − FIRE(W)‖_F² / ‖W‖_F² of the whole weight. Inf for a weight of zeros that FIRE would
            change.
        quantiles: Quantiles of the singular values of all matrices, at `QUANTILES`.
    """

    name: str
    shape: tuple[int, ...]
    dfi_reference: float
    dfi_normalized: float = inf
    condition: float = inf
    stable_rank: float = inf
    norm: float = inf
    sfe_normalized: float = inf
    quantiles: tuple[float, ...] = (inf,) * len(QUANTILES)

    @property
    def dfi_ratio(self) -> float:
        """Normalized DfI divided by that of the reference; NaN if that is 0, as for an isometry."""
        return self.dfi_normalized / self.dfi_reference if self.dfi_reference > 1e-9 else nan


@torch.no_grad()
def diagnosis_of(
    weight: Tensor,
    name: str = "",
    dfi_reference: float | None = None,
    *,
    steps: int | Literal["exact"] = 10,
    coefficients: Coefficients = "cubic",
    scale: Scale = "paper",
    groups: int = 1,
) -> Diagnosis:
    """Compute the metrics of one weight, in float64, by a singular value decomposition.

    FIRE keeps singular vectors, so singular values determine how far it moves a weight: σ becomes s·f(σ), where f is
    the iteration and s the scale.

    Args:
        weight: Shape `(out, in, *kernel)`, real floating dtype, not empty.
        name: Its name.
        dfi_reference: Normalized DfI of its reference. Default: that of a new weight, `dfi_of_new(weight.shape)`.
        steps: See `functional.fire`.
        coefficients: See `functional.fire`.
        scale: See `functional.fire`.
        groups: Number of matrices stacked in the outputs, such as experts.

    Example:
        >>> measured = diagnosis_of(torch.diag(torch.tensor([1.0, 3.0])), steps="exact")
        >>> measured.condition, round(measured.sfe_normalized, 6)  # (1 − 1)² + (3 − 1)², by 1² + 3²
        (3.0, 0.4)
    """
    shape = tuple(weight.shape)
    one = (shape[0] // groups, *shape[1:])
    reference = dfi_of_new(one) if dfi_reference is None else dfi_reference
    if not torch.isfinite(weight).all():
        return Diagnosis(name, shape, reference)
    matrices = as_matrices(weight.double(), groups).flatten(0, 1)  # (groups · positions, out / groups, in)
    sigma = singular_values(matrices)  # (groups · positions, r), the largest first
    if steps == "exact":
        new = torch.ones_like(sigma).masked_fill(sigma[:, :1] == 0, 0.0)
    else:
        start = unit_norm(sigma.unsqueeze(-1)).unsqueeze(-1)  # (…, r, 1, 1): as matrices of one entry
        new = newton_schulz(start, steps, COEFFICIENTS[coefficients])[..., 0, 0]
    new = rescale(new.unsqueeze(-1), sigma.unsqueeze(-1), one, scale).squeeze(-1)
    largest, smallest = sigma[:, 0], sigma[:, -1]
    rounding = torch.finfo(sigma.dtype).eps * max(one[:2])
    ordered = sigma.flatten().sort().values  # `torch.quantile` takes no more than 16 million values
    return Diagnosis(
        name,
        shape,
        reference,
        dfi_normalized=dfi_normalized(matrices).mean().item(),
        condition=torch.where(smallest <= rounding * largest, torch.inf, largest / smallest).max().item(),
        stable_rank=stable_rank_of(sigma).mean().item(),
        norm=sigma.norm().item(),
        sfe_normalized=sfe_normalized(sigma, new).item(),
        quantiles=tuple(ordered[round(at * (len(ordered) - 1))].item() for at in QUANTILES.values()),
    )


def dfi_of_new(shape: tuple[int, ...]) -> float:
    """Return the expected normalized DfI of a new weight (out, in, *kernel) with independent Gaussian entries.

    With r the short and l the long side, ‖G‖_F² has the expectation r·l·(r + l + 1) and (tr G)² has r·l·(r·l + 2), and
    their ratio is independent of the norm. So it is r·(r + l + 1) / (r·l + 2) - 1, about r / l.

        >>> round(dfi_of_new((512, 512)), 3), round(dfi_of_new((10, 64, 3, 3)), 3)
        (1.002, 0.168)
    """
    r, l = sorted(shape[:2])  # noqa: E741
    return r * (r + l + 1) / (r * l + 2) - 1


def mean_ratio(ratios: Iterable[float]) -> float:
    """Return the geometric mean of the finite ratios of DfI to its reference; NaN without any.

    >>> mean_ratio([2.0, 8.0, nan])
    4.0
    """
    logs = [log(max(ratio, _LEAST)) for ratio in ratios if isfinite(ratio)]
    return exp(sum(logs) / len(logs)) if logs else nan
