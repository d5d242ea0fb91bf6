"""Penalties on weights, with gradients in closed form (no autograd graph)."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer

from lightning_fire.methods.base.loop import Loop
from lightning_fire.methods.base.method import Attached, StepMethod
from lightning_fire.where import Weights, WeightView


class Penalty(Attached):
    """A penalty λ·P attached to parameters of a model. Subclasses implement `penalty_of` and `gradient_of`."""

    def __init__(self, parameters: Mapping[str, Parameter], strength: float):
        self.parameters, self.strength = parameters, strength

    def penalty_of(self, name: str, weight: Tensor) -> Tensor:
        """Return the penalty P of one parameter, a scalar, at a value of any shape."""
        raise NotImplementedError

    def gradient_of(self, name: str, weight: Tensor) -> Tensor:
        """Return the gradient of the penalty P with respect to one parameter, of its shape."""
        raise NotImplementedError

    def held(self) -> list[Tensor]:
        """Return the penalized parameters."""
        return list(self.parameters.values())

    @torch.no_grad()
    def metrics(self) -> dict[str, float]:
        """Return λ·P, summed over all parameters, as `penalty`."""
        penalties = [self.penalty_of(name, parameter) for name, parameter in self.parameters.items()]
        total = sum(penalty.to(penalties[0].device) for penalty in penalties)  # parameters may be on several devices
        return {"penalty": self.strength * float(total)}

    @torch.no_grad()
    def before_step(self, optimizer: Optimizer | None = None, gradient_scale: float = 1.0) -> None:
        """Add the gradient of λ·P to `.grad`, which equals the penalty in the loss.

        Parameters without a gradient get none if no parameter has one.
        """
        of = None if optimizer is None else {p for group in optimizer.param_groups for p in group["params"]}
        chosen = {name: p for name, p in self.parameters.items() if p.requires_grad and (of is None or p in of)}
        if not self.strength or all(parameter.grad is None for parameter in chosen.values()):
            return
        for name, parameter in chosen.items():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            parameter.grad.add_(self.gradient_of(name, parameter), alpha=self.strength * gradient_scale)


class PenaltyMethod(StepMethod):
    """Base class of methods with a penalty, whose factor is `strength`."""

    strength: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.strength < 0:
            raise ValueError(f"`strength` must be at least 0, got {self.strength}")


def views_of_weights(model: nn.Module, where: Weights, training: Loop) -> dict[str, list[WeightView]]:
    """Return the views of each selected weight by name: one, or several for the parts of a fused weight."""
    names: dict[Parameter, str] = {}
    views: dict[str, list[WeightView]] = {}
    for view in where.select(model, training.trained(model)):
        views.setdefault(names.setdefault(view.parameter, view.name), []).append(view)
    return views
