"""Hidden units of a model: what comes in, what belongs to them, what goes out."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from lightning_fire.where.selection import ByName, columns, some
from lightning_fire.where.unit_tracing import Producer, trace
from lightning_fire.where.weight_view import WeightView


@dataclass(frozen=True, eq=False)
class Entries:
    """The entries of a tensor that belong to units, one for each.

    Attributes:
        tensor: A bias, or scale, shift, running mean or running variance of a normalisation layer; shape `(units,)`.
        start: The value that a new unit has there.
    """

    tensor: Tensor
    start: float


@dataclass(frozen=True, eq=False)
class Outgoing:
    """The weight of a layer that takes units in.

    Attributes:
        view: The weight, `(out, in, *kernel)`.
        block: Inputs of each unit, side by side: more than 1 where a convolution is flattened.
        bias: The bias of that layer, None without one.
    """

    view: WeightView
    block: int
    bias: Parameter | None

    def columns(self, units: Tensor) -> Tensor:
        """Return the inputs that belong to units, int64 (len(units) · block,).

        Args:
            units: Numbers of units, int64 (n,).
        """
        return (units.unsqueeze(1) * self.block + torch.arange(self.block, device=units.device)).flatten()


@dataclass(frozen=True, eq=False)
class UnitLayer:
    """The hidden units of one layer.

    Attributes:
        name: Name of the layer whose outputs they are.
        layer: That layer, Linear or convolution.
        incoming: Its weight; row u is what comes into unit u.
        entries: What else belongs to the units, one number each: the bias of the layer, and scales, shifts and running
            statistics of the normalisation layers between it and the next weights.
        outgoing: The weights that take the units in.
        observed: The module whose first input is the activation of the units, after norm and nonlinearity.
        dim: The dimension of that input that counts the units.
        observed_block: Inputs of each unit there, side by side.
        with_gradients: Whether it runs with gradients: passes under `no_grad`, if there are others, do not count.
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

    def counts_now(self) -> bool:
        """Return whether a pass that runs now counts. Call it before entering `no_grad`."""
        return torch.is_grad_enabled() or not self.with_gradients

    def activity(self, activation: Tensor) -> Tensor:
        """Bring an input of `observed` into the shape `(samples, units)`.

        Args:
            activation: The input, any shape with the units in `dim`.

        Returns:
            Samples are batch entries and places; a view where that is possible.
        """
        return activation.unflatten(self.dim, (self.size, self.observed_block)).movedim(self.dim, -1).flatten(0, -2)


class Row(NamedTuple):
    """A layer in the table of a selection."""

    name: str
    units: str
    outgoing: str
    verdict: str


class UnitSelection(Sequence[UnitLayer]):
    """The selected layers of hidden units, in the order of the forward pass. `print` shows every layer of the model.

    Args:
        layers: The layers.
        rows: The table.
    """

    def __init__(self, layers: Sequence[UnitLayer], rows: Sequence[Row]):
        self._layers, self.rows = list(layers), list(rows)

    def __getitem__(self, index: int) -> UnitLayer:
        return self._layers[index]

    def __len__(self) -> int:
        return len(self._layers)

    def __iter__(self) -> Iterator[UnitLayer]:
        return iter(self._layers)

    def __str__(self) -> str:
        cells = [("layer", "units", "outgoing weights", ""), *self.rows]
        return f"{columns(cells)}\n{sum(layer.size for layer in self)} hidden units in {len(self)} layers taken"


class HiddenUnits(ByName):
    """Finds the hidden units of a model by watching one forward pass, and selects layers of them by name.

    A layer of units is taken if all that its outputs go through is known: normalisation layers, nonlinearities,
    dropout, pooling and flattening, up to the Linear and convolution weights that take them in. Units that go anywhere
    else, such as into a residual sum, an attention product or the output, are left alone, and the table says why.

    Args:
        include: Regular expressions, searched in names of layers such as `layer1.0.conv1`. Default: all are taken.
        exclude: Likewise, to leave out.

    Raises:
        ValueError: If `include` or `exclude` is no list of regular expressions.

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

    def select(self, module: nn.Module, forward: Callable[[], Any]) -> UnitSelection:
        """Apply the selection to a model.

        Args:
            module: Any module.
            forward: Runs the model once, on any batch.

        Returns:
            The selected layers, which also print as a table of the whole model.

        Raises:
            ValueError: If nothing is selected, or a pattern matches no layer.
        """
        producers = trace(module, forward)
        self.check([producer.name for producer in producers], "layer")
        layers, rows = [], []
        for producer in producers:
            refusal = producer.obstacle or self.refusal(producer.name)
            if not refusal:
                layers.append(_layer_of(producer))
            rows.append(Row(producer.name, str(producer.view.shape[0]), _consumers(producer), refusal or "taken"))
        if not layers:
            reasons = [f"{row.name}: {row.verdict}" for row in rows]
            raise ValueError(
                f"{self} finds no hidden units of {type(module).__name__}: {some(reasons, '; ') or 'no layers ran'}"
            )
        return UnitSelection(layers, rows)


def _layer_of(producer: Producer) -> UnitLayer:
    observed, dim, block = producer.observed
    return UnitLayer(
        name=producer.name,
        layer=producer.layer,
        incoming=producer.view,
        entries=tuple(Entries(tensor, start) for tensor, start in producer.entries),
        outgoing=tuple(Outgoing(consumer.view, block, consumer.bias) for consumer, block in producer.consumers),
        observed=observed,
        dim=dim,
        observed_block=block,
        with_gradients=producer.with_gradients,
    )


def _consumers(producer: Producer) -> str:
    return ", ".join(
        consumer.view.name + (f" ({block} inputs each)" if block > 1 else "") for consumer, block in producer.consumers
    )
