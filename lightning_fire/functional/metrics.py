"""Distance of a matrix from isometry (plasticity), and from its former values (stability).

All functions take matrices of shape `(..., m, n)` and reduce the last two dimensions. A dtype that is not real floating
raises a TypeError; fewer than 2 dimensions or two different shapes a ValueError. Results are float32, or float64 for
float64 input. For a convolution weight, pass `as_matrices(weight, groups)` and average (DfI) or sum (SFE).
"""

import torch
from torch import Tensor

from lightning_fire.functional.checks import full_precision, real
from lightning_fire.functional.newton_schulz import power_of_two


@full_precision
def dfi(matrix: Tensor) -> Tensor:
    """Deviation from isometry as the paper defines it: ‖WᵀW − I‖_F² (paper, eq. 2).

    It cannot be 0 if `m < n`: WᵀW then has rank m at most, and `n − m` is the minimum.

    Args:
        matrix: Shape `(..., m, n)`.

    Returns:
        Shape `(...)`, at least 0.

    Example:
        >>> dfi(torch.tensor([[2.0, 0.0], [0.0, 1.0]]))
        tensor(9.)
    """
    matrix = real(matrix, "matrix")
    rows, columns = matrix.shape[-2:]
    floor = max(columns - rows, 0)  # ‖WᵀW − I_n‖² = ‖WWᵀ − I_m‖² + n − m for m < n
    return less_identity(small_gram(matrix)).square().sum((-2, -1)) + floor


@full_precision
def dfi_normalized(matrix: Tensor) -> Tensor:
    """Scale- and shape-invariant deviation from isometry: ‖G/s² − I‖_F² / r.

    G is the Gram matrix on the short side r = min(m, n), s² the mean squared singular value. It is 0 for every scaled
    isometry, wide or tall, and the squared coefficient of variation of the squared singular values otherwise.

    Args:
        matrix: Shape `(..., m, n)`.

    Returns:
        Shape `(...)`, in [0, r − 1]; 1 for a matrix of zeros.

    Example:
        >>> dfi_normalized(5 * torch.eye(2, 7))
        tensor(0.)
        >>> dfi_normalized(torch.diag(torch.tensor([1.0, 3.0])))
        tensor(0.6400)
    """
    matrix = real(matrix, "matrix")
    if matrix.numel() == 0:
        return matrix.new_zeros(matrix.shape[:-2])
    short = min(matrix.shape[-2:])
    largest = matrix.abs().amax((-2, -1), keepdim=True)
    gram = small_gram(matrix / largest.masked_fill(largest == 0, 1.0))
    return less_identity(_with_unit_mean(gram)).square().sum((-2, -1)) / short


@full_precision
def both_deviations(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return `dfi` and `dfi_normalized` of the same matrices, from one Gram matrix each; fast for contiguous ones."""
    matrix = real(matrix, "matrix")
    if matrix.numel() == 0:
        return dfi(matrix), dfi_normalized(matrix)
    rows, columns = matrix.shape[-2:]
    largest = matrix.abs().amax((-2, -1), keepdim=True)
    unit = torch.ldexp(torch.ones_like(largest), torch.frexp(largest).exponent)  # a power of two: exact
    gram = small_gram(matrix / unit)  # squares stay in range
    grams = _with_unit_mean(gram), gram.mul_(unit.square())
    scaled, plain = (torch.linalg.vector_norm(less_identity(each), dim=(-2, -1)).square() for each in grams)
    return plain + max(columns - rows, 0), scaled / min(rows, columns)


@full_precision
def sfe(before: Tensor, after: Tensor) -> Tensor:
    """Squared Frobenius error between two versions of a matrix: ‖W − W̃‖_F² (paper, eq. 1).

    Args:
        before: Shape `(..., m, n)`.
        after: Same shape.

    Returns:
        Shape `(...)`, at least 0.

    Example:
        >>> sfe(torch.zeros(2, 2), torch.ones(2, 2))
        tensor(4.)
    """
    before, after = _of_one_shape(before, after)
    return (before - after).square().sum((-2, -1))


@full_precision
def sfe_normalized(before: Tensor, after: Tensor) -> Tensor:
    """Squared Frobenius error relative to the old matrix: ‖W − W̃‖_F² / ‖W‖_F².

    The paper plots a "normalized SFE" (figure "Ablation study results" (b)) without defining it; this is our reading.

    Args:
        before: Shape `(..., m, n)`.
        after: Same shape.

    Returns:
        Shape `(...)`, at least 0; 0 where nothing changed, Inf where a matrix of zeros changed.

    Example:
        >>> sfe_normalized(torch.eye(2), 2 * torch.eye(2))
        tensor(1.)
    """
    before, after = _of_one_shape(before, after)
    size = power_of_two(torch.maximum(before.abs(), after.abs())) if before.numel() else 1.0
    error = sfe(before / size, after / size)  # whose squares are in range
    return torch.where(error == 0, 0.0, error / (before / size).square().sum((-2, -1)))


def _of_one_shape(before: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
    before, after = real(before, "before"), real(after, "after")
    if before.shape != after.shape:
        shapes = f"{tuple(before.shape)} and {tuple(after.shape)}"
        raise ValueError(f"`before` and `after` must have one shape, got {shapes}")
    return before, after


def small_gram(matrix: Tensor) -> Tensor:
    """Gram matrix on the short side, `(..., r, r)`."""
    rows, columns = matrix.shape[-2:]
    return matrix.mT @ matrix if rows >= columns else matrix @ matrix.mT


def _with_unit_mean(gram: Tensor) -> Tensor:
    mean_square = gram.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
    return gram / mean_square.masked_fill(mean_square == 0, 1.0)


def less_identity(gram: Tensor) -> Tensor:
    """Subtract the identity from Gram matrices, in place."""
    gram.diagonal(dim1=-2, dim2=-1).sub_(1)
    return gram
