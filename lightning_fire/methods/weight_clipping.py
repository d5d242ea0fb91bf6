"""Weight clipping (Elsayed et al., RLJ 2024)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from lightning_fire.methods.base.layer_weights import LayerWeight, layer_weights
from lightning_fire.methods.base.loop import Loop
from lightning_fire.methods.base.method import Attached, StepMethod
from lightning_fire.where import Weights


@dataclass(frozen=True)
class WeightClipping(StepMethod):
    """Clips weights and biases to ±κ/√fan-in after each optimizer step.

    That is κ times the bound of PyTorch's default initialization of Linear and convolution layers. Logs nothing.

    Args:
        bound: κ, above 0 (paper: tuned, 1 to 5).
        where: The weights to clip; their biases go with them. Default: those of all Linear and convolution layers,
            depthwise ones included, of attention and of recurrent layers.

    Raises:
        TypeError: If `where` is a selection of a wrong kind.
        ValueError: If `bound` is not above 0.

    Example:
        >>> model = nn.Linear(4, 1)
        >>> clipping = WeightClipping(bound=2.0).attach(model)
        >>> _ = nn.init.constant_(model.weight, -3.0), nn.init.constant_(model.bias, 0.5)
        >>> clipping.after_step()
        >>> model.weight.data, model.bias.data
        (tensor([[-1., -1., -1., -1.]]), tensor([0.5000]))
    """

    name: ClassVar[str] = "weight_clipping"
    kind: ClassVar[Weights] = Weights()

    bound: float = 1.0
    where: Weights | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.bound > 0:
            raise ValueError(f"`bound` must be above 0, got {self.bound}")

    def begin(self, model: nn.Module, training: Loop) -> "_Clipping":
        """Select the weights and the biases of their layers."""
        return _Clipping(list(layer_weights(model, training, self.where)), self.bound)


class _Clipping(Attached):
    """Weight clipping attached to a model."""

    def __init__(self, weights: Sequence[LayerWeight], bound: float):
        self.weights, self.bound = weights, bound

    @torch.no_grad()
    def after_step(self) -> None:
        """Clip the weights and biases, in place."""
        for weight in self.weights:
            limit = self.bound / math.sqrt(weight.fan_in)
            for tensor, part in [(weight.parameter, ...), *weight.biases]:
                tensor[part].clamp_(-limit, limit)

    def held(self) -> list[Tensor]:
        """Return the clipped weights."""
        return [weight.parameter for weight in self.weights]
