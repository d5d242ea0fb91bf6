"""Shrink and perturb, and DASH, of a weight; different shapes and factors out of range raise a ValueError."""

import torch
from torch import Tensor

from lightning_fire.functional.checks import precise


def shrink_and_perturb(weight: Tensor, target: Tensor, strength: float, perturb: float | None = None) -> Tensor:
    """Move a weight towards a target: (1 − λ)·W + λ·W₀ (paper, section "Continual Visual Learning", baselines).

    Source: Ash & Adams, On warm-starting neural network training, NeurIPS 2020, where the target is a new network
    and the two factors are independent: shrink 0.4 (`strength=0.6`), perturb 0.1.

    Args:
        weight: W, any shape, real floating dtype.
        target: W₀, same shape.
        strength: λ in [0, 1]: 0 changes nothing, 1 leaves nothing of the weight.
        perturb: Factor of the target instead of λ, at least 0.

    Returns:
        Same shape and dtype as `weight`; computed in float32 at least.

    Example:
        >>> shrink_and_perturb(torch.tensor([1.0, 2.0]), torch.tensor([0.0, 1.0]), strength=0.8)
        tensor([0.2000, 1.2000])
    """
    if not 0 <= strength <= 1:
        raise ValueError(f"`strength` must be in [0, 1], got {strength}")
    if perturb is not None and perturb < 0:
        raise ValueError(f"`perturb` must be at least 0, got {perturb}")
    if weight.shape != target.shape:
        raise ValueError(f"`target` must have the shape of `weight`, {tuple(weight.shape)}, got {tuple(target.shape)}")
    old = precise(weight)
    target = target.to(old, non_blocking=old.is_cuda)
    new = old.lerp(target, strength) if perturb is None else (1 - strength) * old + perturb * target
    return new.to(weight.dtype)


def dash(weight: Tensor, direction: Tensor, minimum: float) -> Tensor:
    """Shrink the parts of a weight by their alignment with the negative gradient: w · clamp(cos(w, g), λ, 1).

    Source: Shin et al., DASH: Warm-starting neural network training in stationary settings without loss of plasticity,
    NeurIPS 2024. The parts are the kernels of a convolution, one for each output and input; the rows of a matrix; a
    whole bias. A part with a gradient of zero shrinks by λ.

    Args:
        weight: w, shape `(out, in, *kernel)`, `(out, in)` or `(out,)`, real floating dtype.
        direction: g, the negative gradient of the loss, same shape.
        minimum: λ in [0, 1].

    Returns:
        Same shape and dtype as `weight`; computed in float32 at least.

    Example:
        >>> dash(torch.tensor([[3.0, 4.0], [1.0, 0.0]]), torch.tensor([[4.0, 3.0], [-1.0, 0.0]]), minimum=0.3)
        tensor([[2.8800, 3.8400],
                [0.3000, 0.0000]])
    """
    if not 0 <= minimum <= 1:
        raise ValueError(f"`minimum` must be in [0, 1], got {minimum}")
    if weight.shape != direction.shape:
        shapes = f"{tuple(weight.shape)}, got {tuple(direction.shape)}"
        raise ValueError(f"`direction` must have the shape of `weight`, {shapes}")
    if not weight.is_floating_point():
        raise TypeError(f"`weight` must be of a real floating dtype, got {weight.dtype}")
    if not weight.numel():
        return weight.clone()
    first = min(2, weight.ndim - 1)  # first dimension of a part
    parts = precise(weight).flatten(first)
    cosine = (_unit(parts) * _unit(direction.to(parts.dtype).flatten(first))).sum(-1, keepdim=True)
    return (parts * cosine.clamp(minimum, 1.0)).view(weight.shape).to(weight.dtype)


def _unit(vectors: Tensor) -> Tensor:
    """Return vectors of length 1, zeros for zeros; the largest entry goes first, as squares of gradients underflow."""
    largest = vectors.abs().amax(-1, keepdim=True)
    vectors = torch.where(largest > 0, vectors / largest, vectors)
    return torch.nn.functional.normalize(vectors, dim=-1)
