"""Selection of hidden units, with their incoming weights, biases, normalization entries and outgoing weights."""

from collections.abc import Callable, Collection
from typing import Any

from torch import Tensor, nn

from lightning_fire.where.selection import ByName, Row, Selection, shorten
from lightning_fire.where.trained import UNTRAINED, as_set
from lightning_fire.where.unit_layer import UnitLayer
from lightning_fire.where.unit_tracing import trace


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

    def select(
        self, model: nn.Module, forward: Callable[[], Any], trained: Collection[Tensor] | None = None
    ) -> Selection[UnitLayer]:
        """Apply the selection to a model.

        Args:
            model: Any module.
            forward: Runs the model once, on any batch.
            trained: The parameters that optimizers step. Default: those with `requires_grad`.

        Returns:
            The selected layers. `print` shows a table of the whole model.

        Raises:
            ValueError: If nothing is selected, or a pattern matches no layer.
        """
        layers = trace(model, forward, None if trained is None else as_set(trained))
        self.check([layer.name for layer in layers], "layer")
        rows, taken = [], dict[str, UnitLayer]()
        for layer in layers:
            reason = layer.reason or self.reason(layer.name)
            taken |= {} if reason else {layer.name: layer}
            inputs = [f"{o.view.name}{f' ({o.block} inputs each)' if o.block > 1 else ''}" for o in layer.outgoing]
            rows.append(Row(layer.name, layer.incoming.shape[:1], ", ".join(inputs), reason or "taken"))
        if not taken:
            reasons = shorten([f"{row.name}: {row.reason}" for row in rows], "; ") or "no layer of torch ran"
            raise ValueError(f"{self} finds no hidden units of {type(model).__name__}: {reasons}")
        counted = f"{sum(layer.size for layer in taken.values())} hidden units in {len(taken)} layers"
        untrained = [row.name for row in rows if row.reason == UNTRAINED]
        return Selection(taken, rows, ("layer", "units", "outgoing weights"), counted, untrained=untrained)
