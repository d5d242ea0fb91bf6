"""Change of the features of the same samples, up to rotation and scale (stability).

Features have shape `(..., samples, features)` and are not centred. A dtype that is not real floating raises a
TypeError; fewer than 2 dimensions or unequal numbers of samples a ValueError. Results are float32, or float64 where an
input is float64.
"""

import torch
from torch import Tensor

from lightning_fire.functional.checks import full_precision, real
from lightning_fire.functional.newton_schulz import unit_norm


@full_precision
def feature_covariance_shift(before: Tensor, after: Tensor) -> Tensor:
    """Return ‖C − C̃‖_F, the distance between normalized feature covariances C = H Hᵀ / ‖H‖_F² of features H.

    Source: paper, theorem "SFE bounds output feature covariance".

    Computed in float64, with matrices no larger than samples or features, whichever are fewer. If features are fewer,
    the difference of nearly equal numbers is taken, and shifts below about 1e-8 cannot be distinguished from 0.

    Args:
        before: Features of the samples, shape `(..., samples, features)`.
        after: Other features of the same samples, shape `(..., samples, other features)`.

    Returns:
        Shape `(...)`, in [0, √2].

    Example:
        >>> before, after = torch.eye(3, 2), torch.eye(3, 1)  # C is diag(½, ½, 0), then diag(1, 0, 0)
        >>> feature_covariance_shift(before, after)
        tensor(0.7071)
    """
    before, after = real(before, "before"), real(after, "after")
    if before.shape[:-1] != after.shape[:-1]:
        shapes = f"{tuple(before.shape)} and {tuple(after.shape)}"
        raise ValueError(f"`before` and `after` must be features of the same samples, got {shapes}")
    dtype = torch.promote_types(before.dtype, after.dtype)
    f, g = unit_norm(before.double()), unit_norm(after.double())
    if f.shape[-2] <= min(f.shape[-1], g.shape[-1]):
        shift: Tensor = torch.linalg.matrix_norm(f @ f.mT - g @ g.mT)
        return shift.to(dtype)
    return feature_covariance_shift_of(f.mT @ f, g.mT @ g, f.mT @ g).to(dtype)


@full_precision
def feature_covariance_shift_of(before: Tensor, after: Tensor, cross: Tensor) -> Tensor:
    """Return `feature_covariance_shift` from sums over samples, which can be taken batch by batch.

    ‖C − C̃‖_F² = ‖FᵀF‖_F² + ‖GᵀG‖_F² − 2 ‖FᵀG‖_F² for F, G divided by their norms.

    Args:
        before: FᵀF, shape `(..., m, m)`, float64 advised.
        after: GᵀG, shape `(..., n, n)`.
        cross: FᵀG, shape `(..., m, n)`.

    Returns:
        Shape `(...)`, at least 0.

    Example:
        >>> f, g = torch.eye(3, 2), torch.eye(3, 1)
        >>> feature_covariance_shift_of(f.mT @ f, g.mT @ g, f.mT @ g)
        tensor(0.7071)
    """
    size_before, size_after = _trace_root(before), _trace_root(after)
    before, after = before / size_before / size_before, after / size_after / size_after
    cross = cross / size_before / size_after
    squared = before.square().sum((-2, -1)) + after.square().sum((-2, -1)) - 2 * cross.square().sum((-2, -1))
    return squared.clamp_min(0).sqrt()


def _trace_root(gram: Tensor) -> Tensor:
    """‖F‖_F from FᵀF, `(..., 1, 1)`; 1 for zeros."""
    trace = gram.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    return trace.masked_fill(trace == 0, 1.0).sqrt()
