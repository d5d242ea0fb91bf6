"""Parseval regularization: a penalty that pulls weights towards orthogonal rows (Chung et al., NeurIPS 2024)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from lightning_fire._private import RunningNorms
from lightning_fire.functional import parseval_gradient, parseval_penalty, unit_scale_gradient, unit_scale_penalty
from lightning_fire.methods.base.loop import Loop
from lightning_fire.methods.base.penalty import Penalty, PenaltyMethod, views_of_weights
from lightning_fire.where import Weights
from lightning_fire.where.trained import why_not_trained

_NORMS = (RunningNorms, nn.LayerNorm, nn.GroupNorm)


@dataclass(frozen=True)
class Parseval(PenaltyMethod):
    """Adds λ·Σ ‖WWᵀ − s·I‖_F² to the loss, over the selected weights. Logs `penalty`, λ included.

    Args:
        strength: λ, the factor of the penalty, at least 0.
        scale: s, above 0: the squared singular value that the rows are pulled to. Paper: 1. The method's authors: 2.
        where: The penalized weights. Default: `Weights(preset="cnn", vectors=True)`, every Linear and convolution
            weight.
        norms: Also pull the scales γ of normalization layers to ±1, by λ·Σ (γ² − 1)², as in the code of the FIRE
            paper's authors.

    Raises:
        TypeError: If `where` is a selection of a wrong kind.
        ValueError: If an argument is out of range.

    Example:
        >>> model = nn.Linear(2, 2, bias=False)
        >>> _ = nn.init.eye_(model.weight)
        >>> parseval = Parseval(strength=0.5, scale=2.0).attach(model)
        >>> parseval.metrics()
        {'penalty': 1.0}
        >>> model(torch.zeros(1, 2)).sum().backward()
        >>> parseval.before_step()
        >>> model.weight.grad
        tensor([[-2.,  0.],
                [ 0., -2.]])
    """

    name: ClassVar[str] = "parseval"
    default_where: ClassVar[Weights] = Weights(preset="cnn", vectors=True)

    strength: float
    scale: float = 1.0
    where: Weights | None = None
    norms: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.scale > 0:
            raise ValueError(f"`scale` must be above 0, got {self.scale}")

    def table(self, model: nn.Module) -> str:
        """Show the weights, and whether scales of normalization layers are included."""
        return super().table(model) + ("\nand the scales of normalization layers" if self.norms else "")

    def begin(self, model: nn.Module, training: Loop) -> Penalty:
        """Select the weights."""
        return IsometryPenalty(model, self.strength, self.scale, self.selection, training, self.norms)


class IsometryPenalty(Penalty):
    """The penalty of `Parseval`, attached to a model."""

    def __init__(
        self, model: nn.Module, strength: float, scale: float, where: Weights, training: Loop, norms: bool = False
    ):
        self._views, self._scale = views_of_weights(model, where, training), scale
        weights = {name: views[0].parameter for name, views in self._views.items()}
        super().__init__(weights | (_scales_of(model, training) if norms else {}), strength)

    def penalty_of(self, name: str, weight: Tensor) -> Tensor:
        """Return the penalty of one weight or scale of a normalization layer, a scalar."""
        if name not in self._views:
            return unit_scale_penalty(weight)
        penalties = [parseval_penalty(view.read(), self._scale, view.groups) for view in self._views[name]]
        return sum(penalties[1:], penalties[0])

    def gradient_of(self, name: str, weight: Tensor) -> Tensor:
        """Return the gradient of the penalty, of the shape of `weight`."""
        if name not in self._views:
            return unit_scale_gradient(weight)
        gradient = torch.zeros_like(weight)
        for view in self._views[name]:
            view.of(gradient).write(parseval_gradient(view.read(), self._scale, view.groups))
        return gradient


def _scales_of(model: nn.Module, training: Loop) -> dict[str, Parameter]:
    trained = training.trained(model)
    return {
        f"{name}.weight": layer.weight
        for name, layer in model.named_modules()
        if isinstance(layer, _NORMS) and layer.weight is not None and not why_not_trained(layer.weight, trained)
    }
