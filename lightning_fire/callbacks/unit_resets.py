"""Resets hidden units: new incoming weights, outgoing weights and all that belongs to them at their start."""

import copy
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.optim import Optimizer

from lightning_fire.where import UnitLayer, WeightView


@torch.no_grad()
def reset_units(chosen: Sequence[tuple[UnitLayer, Tensor]], seed: int, optimizers: Iterable[Optimizer]) -> None:
    """Begin units anew, in place.

    Their incoming weights are drawn anew by the layer's `reset_parameters`; bias and entries of normalisation layers go
    to their start, outgoing weights to 0, also those into other new units. The entries of the optimizer's moments that
    belong to any of these become 0. Nothing else moves.

    Args:
        chosen: Layers, and numbers of units in each, int64 (n,).
        seed: Seed of the draw; the global random state is left alone.
        optimizers: The optimizers, whose state tensors of the shape of a parameter are taken for moments.

    Raises:
        ValueError: If a layer has no `reset_parameters`; nothing has been changed then.
    """
    chosen = [(layer, units) for layer, units in chosen if len(units)]
    drawn = [_fresh_weight(layer, seed + index) for index, (layer, _) in enumerate(chosen)]
    optimizers = list(optimizers)
    for (layer, units), fresh in zip(chosen, drawn, strict=True):
        _rows(layer.incoming)[units] = fresh[units]
        for moment in _moments(optimizers, layer.incoming):
            _rows(moment)[units] = 0.0
        for entries in layer.entries:
            entries.tensor[units] = entries.start
            for moment in _moment_tensors(optimizers, entries.tensor):
                moment[units] = 0.0
    for layer, units in chosen:
        for outgoing in layer.outgoing:
            for view in (outgoing.view, *_moments(optimizers, outgoing.view)):
                _rows(view)[:, outgoing.columns(units)] = 0.0


def _rows(view: WeightView) -> Tensor:
    """Return the weight as `(out, in, *kernel)`, to be written into."""
    return view.grid()[0]


def _fresh_weight(layer: UnitLayer, seed: int) -> Tensor:
    if not callable(getattr(layer.layer, "reset_parameters", None)):
        raise ValueError(f"{layer.name} has no reset_parameters() to draw new weights with; leave it out with exclude")
    device = layer.incoming.parameter.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        stand_in = copy.copy(layer.layer)  # shares everything but its parameters
        stand_in._parameters = {
            name: None if value is None else torch.nn.Parameter(torch.empty_like(value))
            for name, value in layer.layer._parameters.items()
        }
        stand_in.reset_parameters()
    return replace(layer.incoming, parameter=stand_in.weight).read()


def _moments(optimizers: Iterable[Optimizer], view: WeightView) -> list[WeightView]:
    return [replace(view, parameter=tensor) for tensor in _moment_tensors(optimizers, view.parameter)]


def _moment_tensors(optimizers: Iterable[Optimizer], parameter: Tensor) -> list[Tensor]:
    values = [value for optimizer in optimizers for value in optimizer.state.get(parameter, {}).values()]
    return [value for value in values if isinstance(value, Tensor) and value.shape == parameter.shape]
