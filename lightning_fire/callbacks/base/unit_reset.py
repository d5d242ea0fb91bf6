"""Resets hidden units: new incoming weights, outgoing weights and all that belongs to them at their start."""

import copy
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from lightning_fire.callbacks.base.initial_values import seed_of_draw
from lightning_fire.callbacks.base.log import log_now
from lightning_fire.callbacks.base.method import TimedCallback
from lightning_fire.callbacks.base.optimizer_state import with_inner
from lightning_fire.callbacks.probing.batches import Forward, forward_on_new_data
from lightning_fire.callbacks.probing.side_effects import is_compiled, is_looking
from lightning_fire.where import HiddenUnits, UnitLayer, WeightView


class WithHiddenUnits(TimedCallback):
    """Knows the hidden units of the module, from the start of training on.

    Args:
        where: The units to act on. Default: `HiddenUnits()`, all that can be resolved.
        start_chunk: Do nothing before the data has changed this often.
        forward: Runs the module on a batch. Default: its `loss_on`, otherwise `training_step`.
        seed: Seed of the new draws, the same on every rank.

    Raises:
        ValueError: If `start_chunk` is below 0, or, when training starts, if `where` finds no units, or one of a layer
            without `reset_parameters`.
        MisconfigurationException: When training starts, if the module optimises manually and has no `loss_on`, and
            `forward` is not given.
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
        if stuck := [layer.name for layer in self.layers if not _can_be_drawn(layer)]:
            raise ValueError(
                f"{', '.join(stuck)} cannot be drawn anew, without reset_parameters(): give it one, or leave it out,"
                f" where=HiddenUnits(exclude={[re.escape(name) for name in stuck]})"
            )
        units = sum(layer.size for layer in self.layers)
        rank_zero_info(f"{type(self).__name__} will watch {units} hidden units in {len(self.layers)} layers.")

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_fit_end(trainer, pl_module)
        self.layers = ()

    def __getstate__(self) -> dict[str, Any]:
        """Leave the layers of the module out of copies and pickles."""
        return {**super().__getstate__(), "layers": ()}


class Record(Protocol):
    """What a method knows of the units of a layer."""

    def see(self, activity: Tensor, batch_size: int) -> None:
        """Take in the outputs of the units on a batch of training, shape `(samples and places, units)`."""

    def saved(self) -> dict[str, Any]:
        """Return what must last, plain values and tensors on the CPU."""


R = TypeVar("R", bound=Record)


class StepwiseUnitReset(WithHiddenUnits, Generic[R]):
    """Watches hidden units on the batches of training, and resets some after each optimizer step.

    A method subclasses it and writes `new_record` and `choose`. Logs what `report` returns at the end of each epoch in
    which it acts.

    Attributes:
        num_reset: Units reset so far.
        records: What is known of each layer, in the order of `layers`; empty outside of fits.
    """

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self.num_reset = 0
        self.records: Sequence[R] = ()
        self._restored: Mapping[str, Mapping[str, Any]] = {}
        self._handles: list[RemovableHandle] = []
        self._watching = self._watched = False

    def new_record(self, layer: UnitLayer, saved: Mapping[str, Any] | None, device: torch.device) -> R:
        """Return the record of a layer: a new one, or what `saved` returned.

        Args:
            layer: The layer.
            saved: What its record was, None at the beginning.
            device: Where the module is.
        """
        raise NotImplementedError

    def choose(self, trainer: Trainer) -> Sequence[tuple[UnitLayer, Tensor]]:
        """Bring the records up to date after a step, and return the units to reset, the same on every rank.

        Args:
            trainer: The Trainer.
        """
        raise NotImplementedError

    def report(self) -> dict[str, float]:
        """Return what to log at the end of an epoch: `{name}/units`, the units reset so far."""
        return {f"{self.name}/units": float(self.num_reset)}

    def describe(self) -> str:
        """Return what tells this callback from others of its class, the same in every process."""
        return f"start_chunk={self.start_chunk}, {self.where!r}"

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        self._forget_hooks()
        self.records = [
            self.new_record(layer, self._restored.get(layer.name), pl_module.device) for layer in self.layers
        ]
        for layer, record in zip(self.layers, self.records, strict=True):
            self._handles.append(layer.observed.register_forward_pre_hook(self._watch(layer, record)))
        if is_compiled(pl_module):
            torch.compiler.reset()  # what was compiled before knows nothing of the hooks

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_start(trainer, pl_module, batch, batch_idx)
        self._watching = self.chunk >= self.start_chunk
        self._watched |= self._watching

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        self._watching = False
        super().on_train_batch_end(trainer, pl_module, *args)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._let_go()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._let_go()
        super().on_fit_end(trainer, pl_module)

    @torch.no_grad()
    def after_step(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not self._watched:  # the same on every rank, whatever its layers have seen
            return
        self._watched = False
        chosen = self.choose(trainer)
        if chosen:
            reset_units(chosen, seed_of_draw(self.seed, self.num_reset + 1), trainer.optimizers)
            self.num_reset += sum(len(units) for _, units in chosen)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.chunk >= self.start_chunk:
            log_now(trainer, self.report(), at_epoch_end=True)

    @property
    def state_key(self) -> str:
        """Key in the checkpoint."""
        return f"{type(self).__qualname__}({self.describe()})"

    def state_dict(self) -> dict[str, Any]:
        """Return plain values and the records of the units."""
        return {**super().state_dict(), "num_reset": self.num_reset, "records": self._saved()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        super().load_state_dict(state_dict)
        self.num_reset, self._restored = state_dict["num_reset"], state_dict["records"]

    def __getstate__(self) -> dict[str, Any]:
        """Leave hooks and records out of copies and pickles, but what a checkpoint would hold."""
        return {**super().__getstate__(), "_handles": [], "records": (), "_restored": self._saved()}

    def _saved(self) -> dict[str, Mapping[str, Any]]:
        if not self.records:
            return dict(self._restored)
        return {layer.name: record.saved() for layer, record in zip(self.layers, self.records, strict=True)}

    def _let_go(self) -> None:
        """Keep what a later fit of the same training goes on from, and nothing of the module."""
        self._restored = self._saved()
        self._forget_hooks()
        self.records, self._watching, self._watched = (), False, False

    def _forget_hooks(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _watch(self, layer: UnitLayer, record: R) -> Callable[..., None]:
        @torch.compiler.disable
        def hook(module: torch.nn.Module, args: tuple[Any, ...]) -> None:
            recomputed = torch._C._current_graph_task_id() != -1  # in backward, by gradient checkpointing
            if self._watching and layer.counts_now() and not recomputed and not is_looking():
                record.see(layer.activity(args[0].detach()), len(args[0]))

        return hook


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
    optimizers = with_inner(optimizers)
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


def _can_be_drawn(layer: UnitLayer) -> bool:
    return callable(getattr(layer.layer, "reset_parameters", None))


def _fresh_weight(layer: UnitLayer, seed: int) -> Tensor:
    if not _can_be_drawn(layer):
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
