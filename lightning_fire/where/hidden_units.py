"""Selection of hidden units, with their incoming weights, biases, normalization entries and outgoing weights."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from lightning_fire.where.selection import ByName, Row, Selection, some
from lightning_fire.where.trained import UNTRAINED, why_not_trained
from lightning_fire.where.unit_tracing import Producer, trace
from lightning_fire.where.weight_view import WeightView


@dataclass(frozen=True, eq=False)
class Entries:
    """The entries of a bias or of a tensor of a normalization layer, one for each unit, and the value of a new unit.

    That value is 0 for a bias, a shift and a running mean, and 1 for a scale and a running variance.
    """

    tensor: Tensor
    start: float


@dataclass(frozen=True, eq=False)
class Outgoing:
    """The weight (and bias) of a layer whose inputs are the units, `block` inputs each (above 1 after flattening)."""

    view: WeightView
    block: int
    bias: Parameter | None

    def columns(self, units: Tensor) -> Tensor:
        """Return the inputs that belong to units with indices int64 (n,): int64 (n · block,)."""
        return (units.unsqueeze(1) * self.block + torch.arange(self.block, device=units.device)).flatten()


@dataclass(frozen=True, eq=False)
class UnitLayer:
    """The hidden units of one layer.

    Attributes:
        name: Name of the layer whose outputs they are.
        layer: That layer, Linear or convolution.
        incoming: Its weight; row u holds the incoming weights of unit u.
        entries: Other values, one for each unit: the bias of the layer, and scales, shifts and running statistics of
            the normalization layers between it and the next weights.
        outgoing: The weights of the next layers.
        observed: The module whose first input is the activation of the units, after norm and nonlinearity.
        dim: The dimension of that input that indexes the units.
        observed_block: Number of adjacent entries of each unit in that dimension.
        with_gradients: Whether it runs with gradients; if so, passes under `no_grad` do not count.
    """

    name: str
    layer: nn.Module
    incoming: WeightView
    entries: tuple[Entries, ...]
    outgoing: tuple[Outgoing, ...]
    observed: nn.Module
    dim: int
    observed_block: int
    with_gradients: bool

    @property
    def size(self) -> int:
        """Number of units."""
        return self.incoming.shape[0]

    def parameters(self) -> list[Parameter]:
        """Return the parameters in which a reset of units changes entries."""
        own = [entries.tensor for entries in self.entries if isinstance(entries.tensor, Parameter)]
        return [self.incoming.parameter, *own, *(outgoing.view.parameter for outgoing in self.outgoing)]

    def counts_now(self) -> bool:
        """Return whether the current pass counts; call it before entering `no_grad`."""
        return torch.is_grad_enabled() or not self.with_gradients

    def activity(self, activation: Tensor) -> Tensor:
        """Reshape an input of `observed` to `(samples, units)`; samples are batch entries and positions.

        Args:
            activation: The input, any shape with the units in `dim`.
        """
        return (
            torch.unflatten(activation, self.dim, (self.size, self.observed_block)).movedim(self.dim, -1).flatten(0, -2)
        )

    def pre_activity(self, output: Tensor) -> Tensor:
        """Reshape an output of `layer` to `(samples, units)`; samples are batch entries and positions.

        Args:
            output: Shape `(..., units, *positions)`, as many positions as the layer has kernel dimensions.
        """
        return output.movedim(output.ndim + 1 - self.incoming.parameter.ndim, -1).flatten(0, -2)


class HiddenUnits(ByName):
    """Selects layers of hidden units, found by tracing one forward pass, by name.

    A layer is taken if its outputs go only through normalization layers, nonlinearities, dropout, pooling and
    flattening into Linear and convolution weights. Units that go anywhere else, such as into a residual sum, an
    attention product or the output, are left alone, and the table gives the reason.

    Args:
        include: Regular expressions, searched in names of layers such as `layer1.0.conv1`. Default: all.
        exclude: Regular expressions; a layer is left out if a pattern matches its name.

    Raises:
        ValueError: If `include` or `exclude` is not a list of regular expressions.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
        >>> print(HiddenUnits().select(net, lambda: net(torch.zeros(2, 1, 4, 4))))
        layer  units  outgoing weights
        0      4      4.weight (4 inputs each)  taken
        4      2                                an output
        4 hidden units in 1 layers taken
    """

    def select(self, module: nn.Module, forward: Callable[[], Any]) -> Selection[UnitLayer]:
        """Apply the selection to a model.

        Args:
            forward: Runs the model once, on any batch.

        Returns:
            The selected layers. `print` shows a table of the whole model.

        Raises:
            ValueError: If nothing is selected, or a pattern matches no layer.
        """
        producers = trace(module, forward)
        self.check([producer.name for producer in producers], "layer")
        layers, rows = [], []
        for producer in producers:
            reason = producer.reason or self.reason(producer.name)
            if not reason:
                layers.append(_layer_of(producer))
            inputs = [(c.view.name, f" ({block} inputs each)" if block > 1 else "") for c, block in producer.consumers]
            outgoing = ", ".join(map("".join, inputs))
            rows.append(Row(producer.name, producer.view.shape[:1], outgoing, reason or "taken"))
        if not layers:
            reasons = some([f"{row.name}: {row.reason}" for row in rows], "; ") or "no layer of torch ran"
            raise ValueError(f"{self} finds no hidden units of {type(module).__name__}: {reasons}")
        return Selection(
            {layer.name: layer for layer in layers},
            rows,
            ("layer", "units", "outgoing weights"),
            f"{sum(layer.size for layer in layers)} hidden units in {len(layers)} layers",
            untrained=[row.name for row in rows if row.reason == UNTRAINED],
        )


def _layer_of(producer: Producer) -> UnitLayer:
    assert producer.observed is not None  # otherwise there is a reason
    biases = [None if c.bias is None or why_not_trained(c.bias) else c.bias for c, _ in producer.consumers]
    return UnitLayer(
        producer.name,
        producer.layer,
        producer.view,
        tuple(Entries(tensor, start) for tensor, start in producer.entries),
        tuple(Outgoing(c.view, block, bias) for (c, block), bias in zip(producer.consumers, biases, strict=True)),
        *producer.observed,
        producer.with_gradients,
    )
