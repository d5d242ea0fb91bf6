"""The projection of FIRE: from a weight to the nearest isometry, and its scale.

Vocabulary used throughout:

* A *matrix* has shape `(..., m, n)`; leading dimensions are a batch. `r = min(m, n)` is its short side.
* The *polar factor* of W = U diag(σ) Vᵀ is U Vᵀ: the matrix with orthonormal rows or columns nearest to W in the
  Frobenius norm (paper, eq. 4). *Isometry* is the state of having such a factor as weight.
* A *weight* has shape `(out, in / groups, *kernel)`, as PyTorch stores Linear and convolution weights; `as_matrices`
  turns it into the stack of `out × in` matrices, one per kernel position (*tap*) and group, that FIRE projects.

A dtype that is not real floating raises a TypeError; fewer than 2 dimensions, a NaN or Inf, or an option out of range a
ValueError.
"""

import math
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Literal, get_args

import torch
from torch import Tensor

from lightning_fire.functional._cpu import iterated, projected
from lightning_fire.functional.checks import finite, full_precision, real
from lightning_fire.functional.newton_schulz import COEFFICIENTS, power_of_two
from lightning_fire.functional.products import corrected

Coefficients = Literal["cubic", "quintic", "muon"]
Scale = Literal["paper", "none", "procrustes"]


@full_precision
def orthogonalize(matrix: Tensor, steps: int = 10, coefficients: Coefficients = "cubic") -> Tensor:
    """Move all singular values of a matrix towards 1 by a fixed number of Newton–Schulz steps.

    Starts from X = W / ‖W‖_F and repeats X ← aX + bX(XᵀX) (+ cX(XᵀX)²) (paper, Algorithm 1). Singular vectors stay as
    they are. Ten cubic steps leave singular values below about 0.02 ‖W‖_F short of 1; see `polar` for the limit.

    Args:
        matrix: Shape `(..., m, n)`.
        steps: Number of iterations, at least 1.
        coefficients: `"cubic"` (1.5, -0.5), `"quintic"` (2, -1.5, 0.5) or `"muon"` (3.4445, -4.7750, 2.0315).

    Returns:
        New tensor of the shape and dtype of `matrix`. A matrix of zeros stays zero. Computed in float32, or in float64
        for float64 input.

    Example:
        >>> import torch
        >>> W = torch.diag(torch.tensor([3.0, 4.0]))
        >>> orthogonalize(W, steps=10)
        tensor([[1., 0.],
                [0., 1.]])
    """
    if not _is_count(steps):
        raise ValueError(f"`steps` must be an integer of at least 1, got {steps!r}")
    return iterated(finite(matrix, "matrix"), steps, _numbers(coefficients)).to(matrix.dtype)


@full_precision
def polar(matrix: Tensor) -> Tensor:
    """Project a matrix onto the nearest one with orthonormal rows or columns: its polar factor (paper, eq. 4).

    Polished by cubic Newton–Schulz steps: ‖QᵀQ − I‖_F / √r is about 3e-7 in float32.

    Args:
        matrix: Shape `(..., m, n)`.

    Returns:
        New tensor of the shape and dtype of `matrix`. The nearest isometry of a rank-deficient matrix is not unique:
        one of several at the same distance is returned. A matrix of zeros stays zero.

    Example:
        >>> import torch
        >>> polar(torch.tensor([[0.0, 2.0], [5.0, 0.0]])).abs().round(decimals=4)
        tensor([[0., 1.],
                [1., 0.]])
    """
    return _checked(finite(matrix, "matrix")).to(matrix.dtype)


def fire(
    weight: Tensor,
    steps: int | Literal["exact"] = 10,
    coefficients: Coefficients = "cubic",
    scale: Scale = "paper",
    groups: int = 1,
) -> Tensor:
    """Reinitialize a weight by FIRE: orthogonalize each of its `out × in` matrices, then set the scale.

    Args:
        weight: Shape `(out, in / groups, *kernel)`: a Linear weight, or one of a convolution of any dimension. Each
            kernel position is a separate matrix (paper, appendix "Implementation Details of FIRE").
        steps: Newton–Schulz steps (paper: 10 for vision and reinforcement learning, 5 for GPT), or `"exact"` for the
            polar factor, the limit of many steps.
        coefficients: The iteration, see `orthogonalize`; without effect for `steps="exact"`.
        scale: `"paper"`: √(out / in) / (number of kernel positions). `"none"`: 1. `"procrustes"`: per matrix the s that
            minimizes ‖W − sQ‖_F, which is ⟨W, Q⟩ / ‖Q‖_F².
        groups: Number of convolution groups; each has its own matrices.

    Returns:
        New tensor of the shape and dtype of `weight`; parts that are all zero stay zero.

    Example:
        >>> import torch
        >>> weight = torch.tensor([[2.0, 0.0], [0.0, 0.5], [0.0, 0.0], [0.0, 0.0]])  # in 2, out 4
        >>> fire(weight, steps="exact")
        tensor([[1.4142, 0.0000],
                [0.0000, 1.4142],
                [0.0000, 0.0000],
                [0.0000, 0.0000]])
    """
    (new,) = fire_of_finite([finite(weight, "weight")], steps, coefficients, [scale], groups, _checked)
    return new.to(weight.dtype)


@full_precision
def fire_of_finite(
    weights: Sequence[Tensor],
    steps: int | Literal["exact"],
    coefficients: Coefficients,
    scales: Sequence[Scale],
    groups: int = 1,
    project: Callable[[Tensor], Tensor] = projected,
) -> list[Tensor]:
    """`fire` for finite weights of one shape, as a batch and without waiting for the GPU.

    Args:
        scales: One for each weight.
        project: Function from matrices to polar factors, for `exact`.
    """
    if steps != "exact" and not _is_count(steps):
        raise ValueError(f"`steps` must be an integer of at least 1, or 'exact', got {steps!r}")
    matrices = [as_matrices(real(weight, "weight"), groups) for weight in weights]
    whole = torch.cat(matrices) if len(matrices) > 1 else matrices[0]
    isometries = project(whole) if steps == "exact" else iterated(whole, steps, _numbers(coefficients))
    new = []
    for weight, own, isometry, scale in zip(weights, matrices, isometries.split(groups), scales, strict=True):
        isometry = rescale(isometry, own, (weight.shape[0] // groups, *weight.shape[1:]), scale)
        new.append(isometry.movedim(1, -1).reshape(weight.shape).to(weight.dtype).contiguous())
    return new


def as_matrices(weight: Tensor, groups: int = 1) -> Tensor:
    """View a weight as the stack of matrices that FIRE projects.

    Args:
        weight: Shape `(out, in / groups, *kernel)`.
        groups: Number of convolution groups.

    Returns:
        Shape `(groups, taps, out / groups, in / groups)`, where `taps` is the number of kernel positions (1 for a
        Linear weight). Shares memory with `weight` where its strides allow.

    Example:
        >>> import torch
        >>> as_matrices(torch.zeros(8, 4, 3, 3)).shape
        torch.Size([1, 9, 8, 4])
    """
    if weight.ndim < 2:
        raise ValueError(f"`weight` must have at least 2 dimensions (out, in, *kernel), got {tuple(weight.shape)}")
    if groups < 1 or weight.shape[0] % groups:
        raise ValueError(f"`groups` must divide the {weight.shape[0]} outputs of the weight, got {groups}")
    taps = math.prod(weight.shape[2:])
    grid = weight.reshape(groups, weight.shape[0] // groups, weight.shape[1], taps)
    return grid.movedim(-1, 1)


def rescale(isometry: Tensor, matrices: Tensor, shape: Sequence[int], scale: Scale) -> Tensor:
    """Multiply Q, computed from matrices W, by the scale of `fire`; `shape` is (out, in, *kernel) of one group."""
    if scale not in get_args(Scale):
        raise ValueError(
            f"`scale` must be 'paper', 'none' or 'procrustes' (for a whole model also 'auto'), got {scale!r}"
        )
    if scale == "none" or not isometry.numel():
        return isometry
    if scale == "paper":
        rows, columns, *kernel = shape
        return isometry * (math.sqrt(rows / columns) / math.prod(kernel))
    size = power_of_two(matrices)  # ⟨W, Q⟩ of huge entries would overflow
    norm = isometry.square().sum((-2, -1), keepdim=True)
    inner = (matrices / size * isometry).sum((-2, -1), keepdim=True)
    return isometry * (inner / norm.masked_fill(norm == 0, 1.0)) * size


def _checked(x: Tensor) -> Tensor:
    """Return the polar factors of finite matrices. Products are checked; the CPU algorithms check themselves."""
    return projected(x) if x.device.type in ("cpu", "meta") or not x.numel() else corrected(projected(x), x)


def _numbers(coefficients: str) -> tuple[float, ...]:
    if coefficients not in COEFFICIENTS:
        raise ValueError(f"`coefficients` must be one of {sorted(COEFFICIENTS)}, got {coefficients!r}")
    return COEFFICIENTS[coefficients]


def _is_count(steps: object) -> bool:
    return isinstance(steps, Integral) and not isinstance(steps, bool) and int(steps) >= 1
