"""New weights from old ones, apart from FIRE: shrink and perturb."""

import torch
from torch import Tensor


def shrink_and_perturb(weight: Tensor, target: Tensor, strength: float, perturb: float | None = None) -> Tensor:
    """Move a weight towards a target: (1 − λ)·W + λ·W₀ (paper, section "Continual Visual Learning", baselines).

    Source: Ash & Adams, On warm-starting neural network training, NeurIPS 2020, where the target is a fresh network and
    the two factors are chosen apart: shrink 0.4 (`strength=0.6`), perturb 0.1.

    Args:
        weight: W, any shape, real floating dtype.
        target: W₀, same shape.
        strength: λ in [0, 1]: 0 changes nothing, 1 leaves nothing of the weight.
        perturb: Factor of the target in the place of λ, at least 0.

    Returns:
        Same shape and dtype as `weight`; computed in float32 at least.

    Raises:
        ValueError: If the shapes differ, or a factor is out of its range.

    Example:
        >>> import torch
        >>> shrink_and_perturb(torch.tensor([1.0, 2.0]), torch.tensor([0.0, 1.0]), strength=0.8)
        tensor([0.2000, 1.2000])
    """
    if not 0 <= strength <= 1:
        raise ValueError(f"`strength` must be in [0, 1], got {strength}")
    if perturb is not None and perturb < 0:
        raise ValueError(f"`perturb` must be at least 0, got {perturb}")
    if weight.shape != target.shape:
        raise ValueError(f"`target` must have the shape of `weight`, {tuple(weight.shape)}, got {tuple(target.shape)}")
    precise = torch.promote_types(weight.dtype, torch.float32)
    target = target.to(weight.device, precise)
    if perturb is None:
        return weight.to(precise).lerp(target, strength).to(weight.dtype)
    return ((1 - strength) * weight.to(precise) + perturb * target).to(weight.dtype)
