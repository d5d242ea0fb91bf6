"""Isometry decay: a decoupled pull of weights towards isometries, the O of AdamO (Rosseau et al., ICML 2026)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn
from torch.optim import Optimizer

from lightning_fire.methods.base.loop import Loop
from lightning_fire.methods.base.penalty import PenaltyMethod
from lightning_fire.methods.parseval import IsometryPenalty
from lightning_fire.where import Weights


@dataclass(frozen=True)
class IsometryDecay(PenaltyMethod):
    """Moves the selected weights towards isometries at each optimizer step: W ← W − lr·λ·4(WWᵀ − I)W.

    `Parseval`, decoupled as weight decay is in AdamW: the moments see only the gradient of the loss. Combined with Adam
    it is AdamO. Logs `penalty`, λ·Σ ‖WWᵀ − I‖_F².

    Args:
        strength: λ, the factor of ‖WWᵀ − I‖_F², whose gradient the decay follows, at least 0 (paper: 1e-3, with a
            learning rate of 1e-4).
        where: The weights that it moves. Default: `Weights(preset="cnn", vectors=True)`, every Linear and convolution
            weight.

    Raises:
        TypeError: If `where` is a selection of a wrong kind.
        ValueError: If `strength` is below 0.

    Example:
        >>> model = nn.Linear(2, 2, bias=False)
        >>> _ = model.weight.data.copy_(torch.diag(torch.tensor([2.0, 1.0])))
        >>> optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        >>> model(torch.zeros(1, 2)).sum().backward()
        >>> IsometryDecay(strength=0.5).attach(model).before_step(optimizer)
        >>> model.weight.data
        tensor([[1.8800, 0.0000],
                [0.0000, 1.0000]])
    """

    name: ClassVar[str] = "isometry_decay"
    default_where: ClassVar[Weights] = Weights(preset="cnn", vectors=True)

    strength: float
    where: Weights | None = None

    def begin(self, model: nn.Module, training: Loop) -> "_Decay":
        """Select the weights."""
        return _Decay(model, self.strength, self.selection, training)


class _Decay(IsometryPenalty):
    """Isometry decay attached to a model."""

    def __init__(self, model: nn.Module, strength: float, where: Weights, training: Loop):
        super().__init__(model, strength, 1.0, where, training)
        self._training = training

    @torch.no_grad()
    def before_step(self, optimizer: Optimizer | None = None, gradient_scale: float = 1.0) -> None:
        """Move the weights that an optimizer is about to step; those without a gradient stay."""
        stepping: Sequence[Optimizer] = self._training.optimizers if optimizer is None else [optimizer]
        if not stepping:
            raise ValueError("isometry decay needs the optimizer, for its learning rates: before_step(optimizer)")
        rates = {p: group["lr"] for each in stepping for group in each.param_groups for p in group["params"]}
        for name, parameter in self.parameters.items():
            if parameter in rates and parameter.grad is not None and self.strength:
                parameter.sub_(self.gradient_of(name, parameter) * (rates[parameter] * self.strength))
