"""Resets hidden units: new incoming weights, outgoing weights and all that belongs to them at their start."""

import copy
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor
from torch.optim import Optimizer

from lightning_fire.callbacks.base import TimedCallback
from lightning_fire.callbacks.probe import Forward, forward_on_new_data
from lightning_fire.where import HiddenUnits, UnitLayer, WeightView


class WithHiddenUnits(TimedCallback):
    """Knows the hidden units of the module, from the start of training on.

    Args:
        where: The units to act on. Default: `HiddenUnits()`, all that can be resolved.
        start_chunk: Do nothing before the data has changed this often.
        forward: Runs the module on a batch. Default: `training_step`, of automatic optimization.
        seed: Seed of the new draws, the same on every rank.

    Raises:
        ValueError: If `start_chunk` is below 0, or, when training starts, if `where` finds no units.
        MisconfigurationException: When training starts, if `forward` is not given and the module optimises manually.
    """

    def __init__(
        self,
        *args: Any,
        where: HiddenUnits | None,
        start_chunk: int,
        forward: Forward | None,
        seed: int,
        **options: Any,
    ):
        super().__init__(*args, **options)
        if start_chunk < 0:
            raise ValueError(f"`start_chunk` must be at least 0, got {start_chunk}")
        self.where = where if where is not None else HiddenUnits()
        self.start_chunk, self.forward, self.seed = start_chunk, forward, seed
        self.layers: Sequence[UnitLayer] = ()

    def show_selection(self, pl_module: LightningModule) -> str:
        return (
            f"{type(self).__name__}(where={self.where}) finds its units when training starts, by watching one batch."
            f" In Python, print({self.where}.select(model, lambda: model(batch))) shows them."
        )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        self.layers = self.where.select(pl_module, lambda: forward_on_new_data(trainer, pl_module, 1, self.forward))
        units = sum(layer.size for layer in self.layers)
        rank_zero_info(f"{type(self).__name__} will watch {units} hidden units in {len(self.layers)} layers.")

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_fit_end(trainer, pl_module)
        self.layers = ()

    def __getstate__(self) -> dict[str, Any]:
        """Leave the layers of the module out of copies and pickles."""
        return {**super().__getstate__(), "layers": ()}


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
