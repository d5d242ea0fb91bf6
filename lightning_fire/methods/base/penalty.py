"""Penalties on weights whose gradients are added in closed form, without a graph."""

from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from lightning_fire.where import Weights, WeightView
from lightning_fire.where.argument import check_model, checked


class Penalty:
    """A penalty λ·P on parameters of a model. A method subclasses it, and writes `penalty_of` and `gradient_of`."""

    def __init__(self, parameters: Mapping[str, Parameter], strength: float):
        if strength < 0:
            raise ValueError(f"`strength` must be at least 0, got {strength}")
        self.parameters, self.strength = parameters, strength

    def penalty_of(self, name: str, weight: Tensor) -> Tensor:
        """Return the penalty P of one parameter, a scalar, at a value of any shape."""
        raise NotImplementedError

    def gradient_of(self, name: str, weight: Tensor) -> Tensor:
        """Return the gradient of the penalty P by one parameter, of its shape."""
        raise NotImplementedError

    @torch.no_grad()
    def penalty(self) -> float:
        """Return λ·P, of all parameters together."""
        total = torch.zeros(())
        for penalty in (self.penalty_of(name, parameter) for name, parameter in self.parameters.items()):
            total = total.to(penalty.device) + penalty  # parameters may be on several devices
        return self.strength * float(total)

    @torch.no_grad()
    def add_gradients(self, of: Collection[Tensor] | None = None, gradient_scale: float = 1.0) -> None:
        """Add the gradient of λ·P to `.grad`; to be called before each optimizer step.

        That equals the penalty in the loss. Call it after gradient accumulation and before gradient clipping. If none
        of the parameters has a gradient, none is made.

        Args:
            of: The parameters that are about to be stepped. Default: all.
            gradient_scale: Factor that is on the gradients, as of a `GradScaler` before `unscale_`.
        """
        chosen = {name: p for name, p in self.parameters.items() if p.requires_grad and (of is None or p in of)}
        if not self.strength or all(parameter.grad is None for parameter in chosen.values()):
            return
        for name, parameter in chosen.items():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            parameter.grad.add_(self.gradient_of(name, parameter), alpha=self.strength * gradient_scale)


def views_of_weights(model: nn.Module, where: Weights | None) -> dict[str, list[WeightView]]:
    """Return the views of each selected weight by its name: one, or the selected parts of a fused weight."""
    names: dict[Parameter, str] = {}
    views: dict[str, list[WeightView]] = {}
    check_model(model)
    for view in checked(where, Weights(preset="cnn", vectors=True)).select(model):
        views.setdefault(names.setdefault(view.parameter, view.name), []).append(view)
    return views
