"""A change of a model: every new value is computed before the first is written."""

import math
import signal
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, distributed, nn

from lightning_fire.distributed import assign, is_expanded, is_sharded, local, put, rank, sum_over_ranks, world_size
from lightning_fire.methods.base.report import COLUMNS, Report, differences, matrices_in_words, report_of
from lightning_fire.where import Weights, WeightView
from lightning_fire.where.selection import shorten

_ENTRIES = 2**22  # entries of a batch, 16 MB in float32: one larger matrix fills a GPU


@dataclass(frozen=True)
class Change:
    """A change of a model, computed and not yet written. `first + second` is both.

    Args:
        values: New values by tensor, each of its shape and sharded as it is. They are freed when they are written.
        report: The report. Default: deviation from isometry and squared Frobenius error of the weights in `values`.
        reset: Tensors whose optimizer state is dropped, by the policy of the method. Default: those in `values`.
        then: Functions that run after the values are written. If one raises, the old values are written back.
        weights: Views of the weights that `report` is about.

    Raises:
        TypeError: If `values` is not a mapping from tensors to tensors.
        ValueError: If a new value has another shape than its tensor, or entries of a tensor share memory (`expand`).
    """

    values: dict[Tensor, Tensor] = field(default_factory=dict)
    report: Report | None = None
    reset: Collection[Tensor] | None = None
    then: Sequence[Callable[[], object]] = ()
    weights: Sequence[WeightView] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", dict(self.values))  # of its own, to free them
        for tensor, new in self.values.items():
            if not isinstance(tensor, Tensor) or not isinstance(new, Tensor):
                kinds = f"{type(tensor).__name__} and {type(new).__name__}"
                raise TypeError(f"`values` must be new tensors by the tensors that they replace, got {kinds}")
            if local(tensor).shape != local(new).shape:
                raise ValueError(
                    f"a new value of shape {tuple(new.shape)} is given for a tensor of shape {tuple(tensor.shape)}"
                )
            if is_expanded(tensor):
                raise ValueError(
                    f"entries of a tensor of shape {tuple(tensor.shape)} share memory, as `expand` makes them, and"
                    " cannot get values of their own: first replace it by a copy, `tensor.clone()`"
                )

    def __add__(self, other: "Change") -> "Change":
        """Return both changes; of equal names in the reports the second counts."""
        resets = [change.values if change.reset is None else change.reset for change in (self, other)]
        return Change(
            {**self.values, **other.values},
            self.report + other.report if self.report and other.report else self.report or other.report,
            [*resets[0], *resets[1]],
            [*self.then, *other.then],
            [*self.weights, *other.weights],
        )

    def followed_by(self, *calls: Callable[[], object]) -> "Change":
        """Return a change with further functions after `then`."""
        return replace(self, then=[*self.then, *calls])

    def new_views(self) -> list[WeightView]:
        """Return the views of `weights`, of the new values, before these are written."""
        return _copies(self.weights, self.values)

    @torch.no_grad()
    def make(self) -> Report:
        """Write the new values in place, then call the functions of `then`. Ctrl-C waits until all of it is done.

        If one of them raises, the old values are written back. A change is made once.
        """
        old: dict[Tensor, Tensor] = {}
        with interrupts_wait():
            try:
                for tensor in list(self.values):
                    old[tensor] = local(tensor).clone()
                    local(tensor).copy_(local(self.values.pop(tensor)))
                for call in self.then:
                    call()
            except BaseException:
                for tensor, value in old.items():
                    local(tensor).copy_(value)
                raise
        return self.report or Report()


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Context manager: Ctrl-C raises KeyboardInterrupt at its end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    former = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)
    if came:
        raise KeyboardInterrupt


@torch.no_grad()
def change_weights(
    weights: Sequence[WeightView],
    new_weights: Callable[[Sequence[WeightView], Sequence[Tensor]], Iterable[Tensor]],
    share_work: bool = False,
    measure: bool = True,
    others: Mapping[Tensor, Tensor] | None = None,
) -> Change:
    """Compute a new weight of the same shape, (out, in / groups, *kernel), for each given weight; all must be finite.

    `new_weights` gets weights of one shape: several on a GPU, as one small product does not fill it, one on a CPU. With
    `share_work` each rank computes some of them and sends them to the others: all ranks must call this and have the
    same weights. `others` are new values of further tensors.
    """
    ranks = world_size() if share_work else 1
    own = rank() if ranks > 1 else 0
    owners = assign([cost(view.shape) for view in weights], ranks)
    # Sharded weights are gathered by all ranks together, before each goes its own way; others are not copied.
    read = {index: whole for index, whole in enumerate(map(WeightView.read, weights)) if owners[index] == own}
    rows = torch.zeros(len(weights), len(COLUMNS) + 1, device=weights[0].parameter.device)
    require_finite(  # zeros for weights of other ranks
        {view.name: read.get(index, rows) for index, view in enumerate(weights)}, ranks > 1
    )
    values: dict[Tensor, Tensor] = {view.parameter: view.parameter.detach().clone() for view in weights}
    copies = _copies(weights, values)
    kept: dict[WeightView, Tensor] = {}
    for batch in _batches(weights, list(read)):
        views = [weights[index] for index in batch]
        old = [read.pop(index) for index in batch]  # frees what was gathered
        new = list(new_weights(views, old))
        for index, row in zip(batch, differences(old, new, views[0].groups), strict=True) if measure else ():
            rows[index] = row
        for index, view, weight in zip(batch, views, new, strict=True):
            if ranks > 1 and is_sharded(view.parameter):
                kept[copies[index]] = weight
            else:
                copies[index].write(weight)
    if ranks > 1:
        _exchange(copies, owners, own, kept)
        sum_over_ranks(rows, ranks)  # zeros from all but the owner
    measured = weights if measure else ()
    report = replace(report_of(measured, rows), taken=matrices_in_words(weights))
    if lost := [name for name, norm in report.table.get("new_norm", {}).items() if not math.isfinite(norm)]:
        raise ValueError(f"the new values of {shorten(lost)} exceed the largest number; no weight has been changed")
    return Change({**values, **(others or {})}, report, weights=measured)


@torch.no_grad()
def new_values(pairs: Iterable[tuple[Tensor, Tensor]]) -> dict[Tensor, Tensor]:
    """Return whole new values of tensors, of any dtype and device, as values of the same dtype, device and sharding.

    Tensors whose entries share memory, such as expanded buffers, are left out.
    """
    values: dict[Tensor, Tensor] = {}
    for tensor, whole in pairs:
        if tensor.shape != whole.shape:
            shapes = f"{tuple(whole.shape)} is given for a tensor of shape {tuple(tensor.shape)}"
            raise ValueError(f"a new value of shape {shapes}; no value has been changed")
        if not is_expanded(tensor):
            values[tensor] = torch.empty_like(tensor)
            put(values[tensor], whole)
    return values


@torch.no_grad()
def with_report(change: Change, model: nn.Module, measure: bool = True, left_out: Sequence[str] = ()) -> Change:
    """Add a report on the weights of `Weights()` that a change replaces, unless it has a report.

    `left_out` are sentences on weights that it does not replace.
    """
    if change.report is not None:
        return change
    weights = measurable(model, change.values) if measure and change.values else ()
    require_data({view.name: view.parameter for view in weights})
    copies = _copies(weights, change.values)
    rows: dict[int, Tensor] = {}
    for batch in _batches(weights, range(len(weights))):
        old, new = ([views[index].read() for index in batch] for views in (weights, copies))
        rows |= zip(batch, differences(old, new, weights[batch[0]].groups), strict=True)
    report = report_of(weights, [rows[index] for index in range(len(weights))])
    parameters = list(model.parameters())
    number = sum(parameter in change.values for parameter in parameters)
    taken = f"{number} of {len(parameters)} parameters" if number else ""
    return replace(change, report=replace(report, taken=taken, left_out=left_out), weights=weights)


def measurable(model: nn.Module, among: Collection[Tensor]) -> Sequence[WeightView]:
    """Return the weights of a model to report on: those of `Weights()`, or none if it finds none."""
    try:
        return [view for view in Weights().select(model) if view.parameter in among]
    except ValueError:
        return ()


def require_finite(tensors: Mapping[str, Tensor], by_ranks: bool = False) -> None:
    """Raise a ValueError that names each tensor that holds a NaN or Inf, on all ranks that share the work.

    Each rank checks its part of sharded tensors. `by_ranks`: each rank holds finite placeholders for the weights of
    others. Tensors on the meta device are an error, too.
    """
    require_data(tensors)
    found = [~is_finite(tensor) for tensor in tensors.values()]  # on the devices of the tensors
    flags = torch.stack([flag.to(found[0].device) for flag in found]).int()
    if by_ranks or any(is_sharded(tensor) for tensor in tensors.values()):
        distributed.all_reduce(flags)
    if broken := [name for name, flag in zip(tensors, flags.tolist(), strict=True) if flag]:
        raise ValueError(
            f"NaN or Inf in {', '.join(broken)}: training has diverged; no weight has been changed."
            " Resume from an earlier checkpoint, or lower the learning rate."
        )


def require_data(tensors: Mapping[str, Tensor]) -> None:
    """Raise a ValueError that names each tensor on the meta device, which has no values."""
    if empty := [name for name, tensor in tensors.items() if tensor.is_meta]:
        raise ValueError(
            f"no values yet in {shorten(empty)} (meta device): first make them, by `model.to_empty(device=…)` and an"
            " initialization, or by `model.load_state_dict(…, assign=True)`"
        )


def is_finite(tensor: Tensor) -> Tensor:
    """Return whether all entries are finite, by minimum and maximum: ten times as fast as `isfinite`."""
    tensor = local(tensor)
    if tensor.is_complex() or not tensor.numel():
        return tensor.isfinite().all()
    return torch.stack(torch.aminmax(tensor)).isfinite().all()


def cost(shape: Sequence[int]) -> int:
    """Relative cost of a new weight: the multiplications of one Gram matrix."""
    return math.prod(shape) * min(shape[:2])


def _batches(weights: Sequence[WeightView], numbers: Iterable[int]) -> list[list[int]]:
    """Return the indices of weights that are computed together: those of one shape on a GPU, otherwise one by one.

    Sharded ones are computed one by one, too, as each is gathered whole.
    """
    batches: list[list[int]] = []
    last: dict[Any, list[int]] = {}
    for index in numbers:
        view, parameter = weights[index], weights[index].parameter
        key = tuple(view.shape), view.groups, parameter.dtype, parameter.device
        together = _fills_with_batches(parameter.device) and not is_sharded(parameter)
        room = _ENTRIES // max(math.prod(view.shape), 1) if together else 1
        if key not in last or len(last[key]) >= room:
            batches.append([])
            last[key] = batches[-1]
        last[key].append(index)
    return batches


def _fills_with_batches(device: torch.device) -> bool:
    return device.type != "cpu"


def _copies(weights: Sequence[WeightView], values: Mapping[Tensor, Tensor]) -> list[WeightView]:
    """Return the same views of the new values."""
    return [view.of(values.get(view.parameter, view.parameter)) for view in weights]


def _exchange(weights: Sequence[WeightView], owners: Sequence[int], own: int, kept: dict[WeightView, Tensor]) -> None:
    """Send each weight from its owner to the others; of sharded ones, the new weights that the owner has kept."""
    for view, owner in zip(weights, owners, strict=True):
        if owner == own:
            new = (kept.pop(view) if view in kept else view.read()).contiguous()
        else:
            new = torch.empty(view.shape, dtype=view.parameter.dtype, device=view.parameter.device)
        distributed.broadcast(new, owner)
        if owner != own or is_sharded(view.parameter):
            view.write(new)
