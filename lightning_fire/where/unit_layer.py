"""The hidden units of a layer: incoming weights, biases, normalization entries and outgoing weights."""

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from lightning_fire.where.weight_view import WeightView


class Entries(NamedTuple):
    """The entries of a bias or of a tensor of a normalization layer, one for each unit, and the value of a new unit.

    That value is 0 for a bias, a shift and a running mean, and 1 for a scale and a running variance.
    """

    tensor: Tensor
    start: float


class Outgoing(NamedTuple):
    """The weight (and trained bias) of a layer whose inputs are the units, `block` each (above 1 after flattening)."""

    view: WeightView
    block: int
    bias: Parameter | None

    def columns(self, units: Tensor) -> Tensor:
        """Return the inputs that belong to units with indices int64 (n,): int64 (n · block,)."""
        return (units.unsqueeze(1) * self.block + torch.arange(self.block, device=units.device)).flatten()


@dataclass(eq=False)
class UnitLayer:
    """The hidden units of one layer.

    Attributes:
        name: Name of the layer whose outputs they are.
        layer: That layer, Linear or convolution.
        incoming: Its weight; row u holds the incoming weights of unit u.
        with_gradients: Whether it runs with gradients; if so, passes under `no_grad` do not count.
        entries: Other values, one for each unit: the bias of the layer, and scales, shifts and running statistics of
            the normalization layers between it and the next weights.
        outgoing: The weights of the next layers.
        observed: The module whose first input is the activation of the units, after norm and nonlinearity.
        dim: The dimension of that input that indexes the units.
        observed_block: Number of adjacent entries of each unit in that dimension.
        reason: Why the units are left out; empty if they are not.
    """

    name: str
    layer: nn.Module
    incoming: WeightView
    with_gradients: bool
    entries: list[Entries] = field(default_factory=list)
    outgoing: list[Outgoing] = field(default_factory=list)
    observed: nn.Module = field(default_factory=nn.Identity)
    dim: int = -1
    observed_block: int = 1
    reason: str = ""

    @property
    def size(self) -> int:
        """Number of units."""
        return self.incoming.shape[0]

    @property
    def bias(self) -> Parameter | None:
        """The bias of the layer, None without one."""
        return self.layer.bias if isinstance(self.layer.bias, Parameter) else None

    def leave_out(self, reason: str) -> None:
        """Give a reason to leave the layer out, unless it is empty; the first one counts."""
        self.reason = self.reason or reason

    def parameters(self) -> list[Parameter]:
        """Return the parameters in which a reset of units changes entries."""
        own = [entries.tensor for entries in self.entries if isinstance(entries.tensor, Parameter)]
        return [self.incoming.parameter, *own, *(outgoing.view.parameter for outgoing in self.outgoing)]

    def counts_now(self) -> bool:
        """Return whether the current pass counts; call it before entering `no_grad`."""
        return torch.is_grad_enabled() or not self.with_gradients

    def activity(self, activation: Tensor) -> Tensor:
        """Reshape an input of `observed`, with the units in `dim`, to `(samples, units)`, a sample per position."""
        blocks = torch.unflatten(activation, self.dim, (self.size, self.observed_block))
        return blocks.movedim(self.dim, -1).flatten(0, -2)

    def pre_activity(self, output: Tensor) -> Tensor:
        """Reshape an output of `layer`, `(..., units, *positions)`, to `(samples, units)`, a sample per position."""
        return output.movedim(output.ndim + 1 - self.incoming.parameter.ndim, -1).flatten(0, -2)
