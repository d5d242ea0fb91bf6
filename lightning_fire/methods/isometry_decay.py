"""Isometry decay: a decoupled pull of weights towards isometries, the O of AdamO (Rosseau et al., ICML 2026)."""

import torch
from torch import nn
from torch.optim import Optimizer

from lightning_fire.methods.parseval import Parseval
from lightning_fire.where import Weights


class IsometryDecay(Parseval):
    """Moves the selected weights towards isometries at each optimizer step: W ← W − lr·λ·4(WWᵀ − I)W.

    The decoupled form of `Parseval`, as AdamW decouples weight decay: the moments use only the gradient of the loss.
    Combined with Adam it is AdamO.

    Args:
        model: Any module.
        strength: λ, the factor of ‖WWᵀ − I‖_F², whose gradient the decay follows, at least 0.
        where: The weights it is on. Default: `Weights(preset="cnn", vectors=True)`, every Linear and
            convolution weight.

    Raises:
        ValueError: If `strength` is below 0, or `where` matches no weight.

    Example:
        >>> model = nn.Linear(2, 2, bias=False)
        >>> _ = model.weight.data.copy_(torch.diag(torch.tensor([2.0, 1.0])))
        >>> optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        >>> model(torch.zeros(1, 2)).sum().backward()
        >>> IsometryDecay(model, strength=0.5).decay(optimizer)
        >>> model.weight.data
        tensor([[1.8800, 0.0000],
                [0.0000, 1.0000]])
    """

    def __init__(self, model: nn.Module, strength: float, where: Weights | None = None):
        super().__init__(model, strength, where=where)

    @torch.no_grad()
    def decay(self, optimizer: Optimizer) -> None:
        """Move the weights that an optimizer is about to step; to be called before each of its steps.

        Weights without a gradient are not stepped, and stay.
        """
        rates = {parameter: group["lr"] for group in optimizer.param_groups for parameter in group["params"]}
        for name, parameter in self.parameters.items():
            if parameter in rates and parameter.grad is not None and self.strength:
                parameter.sub_(self.gradient_of(name, parameter) * (rates[parameter] * self.strength))
