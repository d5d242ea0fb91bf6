"""Direction of a Muon step: the momentum, orthogonalized and scaled."""

import math
from typing import Literal

from torch import Tensor

from lightning_fire.functional.checks import full_precision, one_of, precise
from lightning_fire.functional.newton_schulz import COEFFICIENTS, newton_schulz, unit_norm

MuonScale = Literal["original", "match_rms_adamw"]


@full_precision
def muon_direction(momentum: Tensor, steps: int = 5, scale: MuonScale = "original") -> Tensor:
    """Orthogonalize momenta by Newton–Schulz steps with Muon's coefficients, and scale them by their shape.

    Source: Jordan et al., Muon: An optimizer for hidden layers in neural networks, 2024; `"match_rms_adamw"`: Liu et
    al., Muon is scalable for LLM training, 2025. Singular values end up between about 0.7 and 1.2 times the scale.

    Args:
        momentum: Matrices, shape `(..., out, in)`; of a convolution `(..., out, in · taps)`. NaN and Inf are allowed.
        steps: Number of iterations.
        scale: `"original"`: √max(1, rows / columns); `"match_rms_adamw"`: 0.2 √max(rows, columns). Else a ValueError.

    Returns:
        New tensor of the shape and dtype of `momentum`; computed in float32, or in float64 for float64 input.

    Example:
        >>> import torch
        >>> muon_direction(torch.diag(torch.tensor([3.0, 4.0]))).diag().round(decimals=1)
        tensor([0.7000, 1.1000])
    """
    rows, columns = momentum.shape[-2:]
    one_of(MuonScale, scale=scale)
    if not momentum.numel():
        return momentum.clone()
    factor = math.sqrt(max(1.0, rows / columns)) if scale == "original" else 0.2 * math.sqrt(max(rows, columns))
    x = unit_norm(precise(momentum))
    return (factor * newton_schulz(x, steps, COEFFICIENTS["muon"])).to(momentum.dtype)
