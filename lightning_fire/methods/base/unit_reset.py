"""Re-initialize hidden units: incoming and outgoing weights, biases, normalization entries and optimizer state."""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from lightning_fire._private import is_compiled, is_in_backward, show_hooks
from lightning_fire.contracts import HasResetParameters, implements
from lightning_fire.distributed import to_device
from lightning_fire.methods.base.averages import pairs_of
from lightning_fire.methods.base.change import Change
from lightning_fire.methods.base.loop import Loop
from lightning_fire.methods.base.method import Attached, Method, left_out_of
from lightning_fire.methods.base.optimizers import reset_of_entries
from lightning_fire.methods.base.passes import is_ignored
from lightning_fire.methods.initial_values import drawn_by, seed_of_draw
from lightning_fire.where import HiddenUnits, UnitLayer, WeightView
from lightning_fire.where.argument import checked

Forward = Callable[[], Any]
Output = Literal["activation", "pre_activation"]


def watched_module(layer: UnitLayer, score: Output) -> nn.Module:
    """Return the module that computes or receives the output of units by which they are scored."""
    return layer.observed if score == "activation" else layer.layer


class _Watching:
    """Hook of a module that shows what the module receives (before it runs) or computes (after).

    In a copy or a pickle of the module it is a function of the standard library that does nothing: passes of a copy
    do not count, and files of a model do not need this package.
    """

    def __init__(self, see: Callable[[Tensor], None]):
        self.see = see

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Tensor | None = None) -> None:
        self.see(args[0] if output is None else output)

    def __reduce__(self) -> Any:
        return getattr, (nullcontext(), "__exit__")


def watch_output(layer: UnitLayer, score: Output, see: Callable[[Tensor], None]) -> RemovableHandle:
    """Call `see` in each forward pass with the output of the units, in the shape that the module computes.

    Args:
        layer: The units.
        score: `"activation"`: the output after normalization and nonlinearity, whose shape `UnitLayer.activity` takes.
            `"pre_activation"`: the output of their layer, before both, whose shape `UnitLayer.pre_activity` takes.
        see: Gets the tensor, with its graph.

    Returns:
        The hook; call its `remove()` to end it. A copy of the model has none.
    """
    if score == "activation":
        return layer.observed.register_forward_pre_hook(_Watching(see))
    return layer.layer.register_forward_hook(_Watching(see))


def by_unit(layer: UnitLayer, score: Output, output: Tensor) -> Tensor:
    """Reshape an output from `watch_output` to (samples and positions, units)."""
    return layer.activity(output) if score == "activation" else layer.pre_activity(output)


def run_watched(forward: Forward, handles: Sequence[RemovableHandle]) -> None:
    """Run a model with gradients, then remove the watching hooks, also if it raises."""
    try:
        with torch.enable_grad():
            forward()
    finally:
        for handle in handles:
            handle.remove()


def select_units(model: nn.Module, training: Loop, where: HiddenUnits | None) -> Sequence[UnitLayer]:
    """Find the hidden units of a model that can be re-initialized."""
    layers = checked(where, HiddenUnits()).select(model, training.run, training.trained(model))
    if stuck := [layer.name for layer in layers if not implements(layer.layer, HasResetParameters)]:
        raise ValueError(
            f"{', '.join(stuck)} cannot be re-initialized, without reset_parameters(): give it one, or leave it out,"
            f" where=HiddenUnits(exclude={[re.escape(name) for name in stuck]})"
        )
    return layers


def units_in_words(layers: Sequence[UnitLayer]) -> str:
    """Return the number of units and layers."""
    left_out = "".join(f", {sentence}" for sentence in left_out_of(layers))
    return f"{sum(layer.size for layer in layers)} hidden units in {len(layers)} layers{left_out}"


def units_shown_later(name: str, where: HiddenUnits) -> str:
    """Text shown instead of a table of hidden units, which needs a batch."""
    return (
        f"{name}(where={where}) finds its units when training starts, by watching one batch."
        f" In Python, print({where}.select(model, lambda: model(batch))) shows them."
    )


class OfUnits(Method):
    """Mixin of methods on hidden units, which are found by running the model."""

    default_where: ClassVar[HiddenUnits] = HiddenUnits()
    needs_batches: ClassVar[bool] = True

    def check(self, model: nn.Module, training: Loop) -> Sequence[str]:
        """Check nothing: units are found by running the model."""
        return ()

    def table(self, model: nn.Module) -> str:
        """Explain how to show the units, which needs a batch."""
        return units_shown_later(type(self).__name__, self.selection)


def units_in(masks: Sequence[Tensor], layers: Sequence[UnitLayer]) -> list[tuple[UnitLayer, Tensor]]:
    """Return the indices of the chosen units of each layer, int64 (n,), from a bool mask of its units, (units,).

    They are on the device of the weights of the layer. The host waits for a GPU once.
    """
    found = torch.cat([mask.to(masks[0].device) for mask in masks]).cpu().split([len(mask) for mask in masks])
    return [
        (layer, to_device(mask.nonzero().flatten(), layer.incoming.parameter.device))
        for layer, mask in zip(layers, found, strict=True)
    ]


@torch.no_grad()
def reset_units(
    values: dict[Tensor, Tensor],
    chosen: Sequence[tuple[UnitLayer, Tensor]],
    seed: int,
    model: nn.Module,
    training: Loop,
    keep_outgoing: bool = False,
) -> None:
    """Draw new values for the units with the given indices, int64 (n,), of each layer, without changing the model.

    Incoming weights are drawn by `reset_parameters`; other entries get their `start`, see `where.hidden_units.Entries`.
    Either all outgoing weights become 0, those into other new units included, or all stay. Entries of the optimizer
    state and of averages follow. The global random state is unchanged.

    Args:
        values: New values by tensor, to which those of the units are added.
    """
    chosen = [(layer, units) for layer, units in chosen if len(units)]
    if not chosen:
        return
    averages = [pair for _, pairs in pairs_of(model, training.averages, training.optimizers) for pair in pairs]

    def write(tensor: Tensor, entries_of: Callable[[Tensor], Tensor], units: Tensor, value: Tensor | float) -> None:
        """Write entries of a tensor, of its averages, and of their optimizer state."""
        for copy in (copy for copy, averaged in averages if averaged is tensor):
            write(copy, entries_of, units, value)
        _set(values, tensor, entries_of, units, value)
        for state, start in reset_of_entries(training.optimizers, tensor):
            start = value if start is tensor else start
            if isinstance(start, Tensor) and start.shape == state.shape:
                start = entries_of(start)[units.to(start.device)]
            _set(values, state, entries_of, units, start)

    for index, (layer, units) in enumerate(chosen):
        incoming = layer.incoming
        fresh = incoming.of(drawn_by(layer.layer, seed + index)["weight"]).read()
        write(incoming.parameter, partial(_rows, incoming), units, fresh[units.to(fresh.device)])
        for entries in layer.entries:
            write(entries.tensor, lambda tensor: tensor, units, entries.start)
    for layer, units in () if keep_outgoing else chosen:
        for outgoing in layer.outgoing:
            write(outgoing.view.parameter, partial(_columns, outgoing.view), outgoing.columns(units), 0.0)


def trained_units(
    chosen: Sequence[tuple[UnitLayer, Tensor]], model: nn.Module, layers: Sequence[UnitLayer], training: Loop
) -> Sequence[tuple[UnitLayer, Tensor]]:
    """Return the chosen units without those of layers with weights that no optimizer trains.

    Raises a ValueError if that excludes all `layers`.
    """
    stepped = training.trained(model)
    if stepped is None:
        return chosen
    trained = {layer.name for layer in layers if stepped.issuperset(layer.parameters())}
    if not trained:
        raise ValueError("the given optimizers train no layer of these units: they may belong to another model")
    return [(layer, units if layer.name in trained else units[:0]) for layer, units in chosen]


def _set(
    values: dict[Tensor, Tensor],
    tensor: Tensor,
    entries_of: Callable[[Tensor], Tensor],
    units: Tensor,
    value: Tensor | float,
) -> None:
    """Set entries of the new value of a tensor, which starts as a copy of it."""
    new = entries_of(values.setdefault(tensor, tensor.detach().clone()))
    new[units.to(new.device)] = value.to(new) if isinstance(value, Tensor) else value


class UnitStatistics(Protocol):
    """Statistics of the units of one layer."""

    def update(self, activity: Tensor, batch_size: int) -> None:
        """Add the outputs of the units in one forward pass.

        Args:
            activity: Shape (samples and positions, units), after or before normalization and nonlinearity.
            batch_size: Number of samples.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return plain values and tensors on the CPU."""


S = TypeVar("S", bound=UnitStatistics)


class StepwiseReset(Attached, Generic[S]):
    """Watches the hidden units of a model during training and re-initializes some after optimizer steps.

    Subclasses implement `new_statistics` and `choose`. Units are scored by one of two outputs, `score`, see
    `watch_output`. Forward passes count while `watching` is True; passes under `no_grad` count only if the model never
    runs with gradients. A copy together with its model, as of an agent that holds both, watches the copied model.
    """

    def __init__(self, model: nn.Module, training: Loop, where: HiddenUnits | None, seed: int, score: Output):
        self.layers = select_units(model, training, where)
        self.model, self.training, self.seed, self.num_reset, self.score = model, training, seed, 0, score
        self.statistics = [self.new_statistics(layer, layer.incoming.parameter.device, {}) for layer in self.layers]
        self._watched: list[tuple[Output, str]] = []
        self._ends: list[Callable[[], None]] = []  # of hooks and of `show_hooks`
        self._is_compiled = is_compiled(model)
        self.watch(score, "update")

    def __getstate__(self) -> dict[str, Any]:
        """State of a copy, without the hooks."""
        return {**vars(self), "_ends": []}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state, _watched=[])
        for score, update in state["_watched"]:
            self.watch(score, update)

    def new_statistics(self, layer: UnitLayer, device: torch.device, state: Mapping[str, Any]) -> S:
        """Return the statistics of a layer: new ones if `state` is empty, otherwise restored from this `state_dict`."""
        raise NotImplementedError

    def choose(self) -> Sequence[tuple[UnitLayer, Tensor]]:
        """Update the statistics after a step; return the units to re-initialize, the same on every rank."""
        raise NotImplementedError

    def forgetting(self, chosen: Sequence[tuple[UnitLayer, Tensor]]) -> Change:
        """Change that restarts the statistics of the chosen units (`then`), with new values of further tensors."""
        raise NotImplementedError

    @torch.no_grad()
    def after_step(self) -> None:
        """Update the statistics and re-initialize units, except those of layers that no optimizer trains."""
        chosen = self.choose()
        if any(len(units) for _, units in chosen):
            chosen = trained_units(chosen, self.model, self.layers, self.training)
        if not chosen:
            return
        number, change = self.num_reset + sum(len(units) for _, units in chosen), self.forgetting(chosen)
        values, seed = dict(change.values), seed_of_draw(self.seed, self.num_reset + 1)
        averages = pairs_of(self.model, self.training.averages, self.training.optimizers)
        for copy, tensor in (pair for _, pairs in averages for pair in pairs):
            if tensor in change.values:  # an average may differ, and moves by the same difference
                values[copy] = copy + (change.values[tensor] - tensor).to(copy)
        reset_units(values, chosen, seed, self.model, self.training)
        replace(change, values=values).followed_by(partial(setattr, self, "num_reset", number)).make()

    def held(self) -> list[Tensor]:
        """Return the weights of the watched layers and of the next ones."""
        return [parameter for layer in self.layers for parameter in layer.parameters()]

    def selected(self) -> str:
        """Return the number of units and layers."""
        return units_in_words(self.layers)

    def metrics(self) -> dict[str, float]:
        """Return `units`, the number of units reset so far."""
        return {"units": float(self.num_reset)}

    def close(self) -> None:
        """Remove the hooks from the model."""
        for end in self._ends:
            end()
        self._watched, self._ends = [], []

    def state_dict(self) -> dict[str, Any]:
        """Return the statistics and the number of units reset, plain values and tensors on the CPU."""
        statistics = {layer.name: each.state_dict() for layer, each in zip(self.layers, self.statistics, strict=True)}
        return {"num_reset": self.num_reset, "records": statistics}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a `state_dict`. Layers not in it start with new statistics."""
        self.num_reset, known = state.get("num_reset", 0), state.get("records", {})
        self.statistics = [
            self.new_statistics(layer, layer.incoming.parameter.device, known.get(layer.name) or {})
            for layer in self.layers
        ]

    def watch(self, score: Output, update: str) -> None:
        """Call the method `update` of the statistics of each layer in each counted pass, until `close()`."""

        def see(index: int, layer: UnitLayer, output: Tensor) -> None:
            if is_ignored(watched_module(layer, score)):  # before any operation, as another method may trace this pass
                return
            recomputed = is_in_backward()  # by gradient checkpointing
            if self.watching and layer.counts_now() and not recomputed:
                getattr(self.statistics[index], update)(by_unit(layer, score, output.detach()), len(output))

        self._watched.append((score, update))
        hook = torch.compiler.disable(see) if self._is_compiled else see
        self._ends += [
            watch_output(layer, score, partial(hook, index, layer)).remove for index, layer in enumerate(self.layers)
        ]
        if self._is_compiled:
            self._ends += [show_hooks(watched_module(layer, score)) for layer in self.layers]


def _rows(view: WeightView, tensor: Tensor) -> Tensor:
    """Return a writable view `(out, in, *kernel)` of a tensor that is stored like a weight."""
    return view.of(tensor).grid()[0, 0]


def _columns(view: WeightView, tensor: Tensor) -> Tensor:
    """Return a writable view `(in, out, *kernel)` of a tensor that is stored like a weight."""
    return _rows(view, tensor).transpose(0, 1)
