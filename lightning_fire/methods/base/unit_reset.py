"""Re-initialize hidden units: incoming and outgoing weights, biases, normalization entries and optimizer state."""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from lightning_fire._private import is_compiled, is_in_backward, show_hooks
from lightning_fire.contracts import HasResetParameters, offers
from lightning_fire.distributed import warn
from lightning_fire.methods.base.all_or_nothing import Write
from lightning_fire.methods.base.averages import averages_of
from lightning_fire.methods.base.beginning import parts_of, starts_in
from lightning_fire.methods.base.change import Change
from lightning_fire.methods.base.copies import copies_in
from lightning_fire.methods.base.ignored_passes import is_ignored
from lightning_fire.methods.base.method import Attached, Method, verified
from lightning_fire.methods.base.optimizers import Optimizers, listed, parameters_of, resting
from lightning_fire.methods.base.training import Training
from lightning_fire.methods.base.transfers import sent
from lightning_fire.methods.initial_values import drawn_by, seed_of_draw
from lightning_fire.where import HiddenUnits, UnitLayer, WeightView
from lightning_fire.where.argument import check_model, checked
from lightning_fire.where.trained import leaves_out

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

    @torch.compiler.disable  # type: ignore[untyped-decorator]
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


def select_units(model: nn.Module, forward: Forward, where: HiddenUnits | None) -> Sequence[UnitLayer]:
    """Find the hidden units of a model that can be re-initialized."""
    check_model(model)
    layers = checked(where, HiddenUnits()).select(model, forward)
    if stuck := [layer.name for layer in layers if not offers(layer.layer, HasResetParameters)]:
        raise ValueError(
            f"{', '.join(stuck)} cannot be re-initialized, without reset_parameters(): give it one, or leave it out,"
            f" where=HiddenUnits(exclude={[re.escape(name) for name in stuck]})"
        )
    return layers


def units_in_words(layers: Sequence[UnitLayer]) -> str:
    """Return the number of units and layers."""
    left_out = "".join(f", {sentence}" for sentence in leaves_out(getattr(layers, "untrained", ())))
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

    def check(self, model: nn.Module) -> Sequence[str]:
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
        (layer, sent(mask.nonzero().flatten(), layer.incoming.parameter.device))
        for layer, mask in zip(layers, found, strict=True)
    ]


@torch.no_grad()
def unit_resets(
    chosen: Sequence[tuple[UnitLayer, Tensor]],
    seed: int,
    optimizers: Optimizers,
    keep_outgoing: bool = False,
    copies: Mapping[Tensor, Sequence[Tensor]] = MappingProxyType({}),
) -> list[Write]:
    """Draw new values for the units with the given indices, int64 (n,), of each layer, without changing the model.

    Incoming weights are drawn by `reset_parameters`; other entries get their `start`, see `where.hidden_units.Entries`.
    `copies` of the tensors get the same values.

    Returns:
        The writes that re-initialize the units, in order. Either all outgoing weights become 0, those into other new
        units included, or all stay. The global random state is unchanged.
    """
    chosen = [(layer, units) for layer, units in chosen if len(units)]
    parts = parts_of(optimizers)
    writes: list[Write] = []

    def write(tensor: Tensor, grid_of: Callable[[Tensor], Tensor], units: Tensor, value: Tensor | float) -> None:
        """Write entries of a tensor, of its copies, and of their optimizer state."""
        for copy in copies.get(tensor, ()):
            write(copy, grid_of, units, value)
        writes.append(Write(tensor, units.to(tensor.device), value, grid_of))
        for state, start, optimizer in starts_in(parts, tensor):
            if start is None:
                warn(
                    f"the state of {type(optimizer).__name__} (averages of weights, 8-bit codes) cannot be reset for"
                    " some units of a layer: that of re-initialized units is unchanged",
                    optimizer,
                )
            else:
                begun = value if start == "weight" else start
                writes.append(Write(state, units.to(state.device), begun, grid_of))

    for index, (layer, units) in enumerate(chosen):
        incoming = layer.incoming
        fresh = incoming.of(drawn_by(layer.layer, seed + index)["weight"]).read()
        write(incoming.parameter, partial(_rows, incoming), units, fresh[units.to(fresh.device)])
        for entries in layer.entries:
            write(entries.tensor, lambda tensor: tensor, units, entries.start)
    for layer, units in () if keep_outgoing else chosen:
        for outgoing in layer.outgoing:
            write(outgoing.view.parameter, partial(_columns, outgoing.view), outgoing.columns(units), 0.0)
    return writes


def trained_resets(
    chosen: Sequence[tuple[UnitLayer, Tensor]],
    seed: int,
    model: nn.Module,
    layers: Sequence[UnitLayer],
    training: Training,
    keep_outgoing: bool = False,
) -> tuple[Sequence[tuple[UnitLayer, Tensor]], list[Write]]:
    """Return the chosen units that are trained, and their `unit_resets`, for the model and all its copies.

    Excluded are layers with incoming or outgoing weights that no given optimizer trains. Raises a ValueError if that
    excludes all `layers`.
    """
    if not any(len(units) for _, units in chosen):
        return chosen, []
    optimizers, whole = listed(training.optimizers), getattr(training, "together", model)
    copies = copies_in(optimizers, whole.parameters())
    if optimizers:
        stepped = (parameters_of(optimizers) | copies.keys()) - resting(optimizers)
        trained = {layer.name for layer in layers if stepped.issuperset(layer.parameters())}
        if not trained:
            raise ValueError("the given optimizers train no layer of these units: they may belong to another model")
        chosen = [(layer, units if layer.name in trained else units[:0]) for layer, units in chosen]
    for _, pairs in averages_of(whole, training.averages):
        for copy, tensor in pairs:
            copies.setdefault(tensor, []).append(copy)
    return chosen, unit_resets(chosen, seed, optimizers, keep_outgoing, copies)


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

    def __init__(self, model: nn.Module, training: Training, where: HiddenUnits | None, seed: int, score: Output):
        self.layers = select_units(model, partial(training.forward, 1), where)
        self.model, self.training, self.seed, self.num_reset, self.score = model, training, seed, 0, score
        self._is_verified = False
        self._check: Callable[[], None] | None = None  # starts with the next pass, outside of any step
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
        """Change that restarts the statistics of the chosen units (`then`), and writes further entries."""
        raise NotImplementedError

    @torch.no_grad()
    def after_step(self) -> None:
        """Update the statistics and re-initialize units, except those of layers that no optimizer trains."""
        seed = seed_of_draw(self.seed, self.num_reset + 1)
        chosen, resets = trained_resets(self.choose(), seed, self.model, self.layers, self.training)
        if chosen:
            number = self.num_reset + sum(len(units) for _, units in chosen)
            change = self.forgetting(chosen)
            change = replace(change, parts=[*self._with_copies(change.parts), *resets])
            if resets and not self._is_verified:  # only the first reset is verified: a loop that undoes one undoes all
                self._check, self._is_verified = verified(change, self.model, self.training.optimizers).check, True
            change.followed_by(partial(setattr, self, "num_reset", number)).make()

    def _with_copies(self, parts: Sequence[Write]) -> list[Write]:
        """Extend writes to copies of weights, which may differ from the weights and change by the same difference."""
        masters = copies_in(self.training.optimizers, self.model.parameters()) if parts else {}
        pairs = [pair for _, each in averages_of(self.model, self.training.averages) for pair in each] if parts else []
        written: list[Write] = []
        for part in parts:
            change = part.value - part.view_of(part.tensor)[part.index]
            own, averages = masters.get(part.tensor, []), [copy for copy, tensor in pairs if tensor is part.tensor]
            moved = [(copy, part.view_of(copy)[part.index]) for copy in (*own, *averages)]
            copied = [Write(copy, part.index, old + change.to(old), part.view_of) for copy, old in moved]
            value = copied[0].value if own else part.value
            written += [Write(part.tensor, part.index, value, part.view_of), *copied]
        return written

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
            if self._check is not None:
                check, self._check = self._check, None
                check()
            recomputed = is_in_backward()  # by gradient checkpointing
            if self.watching and layer.counts_now() and not recomputed:
                getattr(self.statistics[index], update)(by_unit(layer, score, output.detach()), len(output))

        self._watched.append((score, update))
        self._ends += [
            watch_output(layer, score, partial(see, index, layer)).remove for index, layer in enumerate(self.layers)
        ]
        if self._is_compiled:
            self._ends += [show_hooks(watched_module(layer, score)) for layer in self.layers]


def _rows(view: WeightView, tensor: Tensor) -> Tensor:
    """Return a writable view `(out, in, *kernel)` of a tensor that is stored like a weight."""
    return view.of(tensor).grid()[0, 0]


def _columns(view: WeightView, tensor: Tensor) -> Tensor:
    """Return a writable view `(in, out, *kernel)` of a tensor that is stored like a weight."""
    return _rows(view, tensor).transpose(0, 1)
