"""Weight clipping (Elsayed et al., RLJ 2024)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lightning_fire.methods.base.all_or_nothing import Write
from lightning_fire.methods.base.change import Change
from lightning_fire.methods.base.method import Attached, StepMethod
from lightning_fire.methods.base.training import Training
from lightning_fire.where import Weights, WeightView
from lightning_fire.where.layers import biases_beside


@dataclass(frozen=True)
class WeightClipping(StepMethod):
    """Clips weights and biases to ±κ/√fan-in after each optimizer step.

    That is κ times the bound of PyTorch's default initialization of Linear and convolution layers. Logs nothing.

    Args:
        bound: κ, above 0 (paper: tuned, 1 to 5).
        where: The weights to clip; their biases go with them, of attention and recurrent layers, too. Default:
            `Weights(preset="cnn", vectors=True)`, every Linear and convolution weight.

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
    default_where: ClassVar[Weights] = Weights(preset="cnn", vectors=True)

    bound: float = 1.0
    where: Weights | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.bound > 0:
            raise ValueError(f"`bound` must be above 0, got {self.bound}")

    def begin(self, model: nn.Module, training: Training) -> "_Clipping":
        """Select the weights and the biases of their layers."""
        weights = self.selection.select(model)
        fans = {view.parameter: math.prod(view.shape[1:]) for view in weights}
        biases = [(bias, part, fans[weight]) for weight, bias, part in biases_beside(model, fans)]
        return _Clipping(weights, biases, self.bound)


class _Clipping(Attached):
    """Weight clipping attached to a model."""

    def __init__(self, weights: Sequence[WeightView], biases: Sequence[tuple[Tensor, Any, int]], bound: float):
        self.weights, self.bound = weights, bound
        self.biases = biases  # each with an index of its part and the fan-in of this

    @torch.no_grad()
    def after_step(self) -> None:
        """Clip the weights and biases, in place."""
        limited = [(view.grid(), ..., math.prod(view.shape[1:])) for view in self.weights]
        limits = [(tensor, part, self.bound / math.sqrt(fan_in)) for tensor, part, fan_in in [*limited, *self.biases]]
        Change(parts=[Write(tensor, part, tensor[part].clamp(-limit, limit)) for tensor, part, limit in limits]).make()
