"""A change of a model: every new value is computed before the first is written."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, distributed, nn

from lightning_fire.distributed import assign, is_sharded, local, put, rank, show_warning, sum_over_ranks, world_size
from lightning_fire.functional import as_matrices
from lightning_fire.functional.ranks import singular_values_of_finite
from lightning_fire.methods.base.all_or_nothing import (
    Write,
    distinct,
    insist,
    same_tensors_after_error,
    undone_after_error,
)
from lightning_fire.methods.base.report import COLUMNS, Report, differences, matrices_in_words, report_of
from lightning_fire.methods.base.transfers import read
from lightning_fire.where import Weights, WeightView
from lightning_fire.where.selection import some

_ENTRIES = 2**22  # entries of a batch, 16 MB in float32: one larger matrix fills a GPU


@dataclass(frozen=True)
class Change:
    """A change of a model, computed and not yet written.

    Args:
        values: New values by tensor, each of its shape and sharded as it is.
        report: The report. Default: deviation from isometry and squared Frobenius error of the weights in `values`.
        weights: Views of the weights that `report` is about.
        then: Runs after the values are written. It must be idempotent: it is called again after Ctrl-C. If it raises,
            `values` and `parts` are restored; for anything else that it changes give `guards`.
        left_out: Sentences on what is not changed, and why.
        touched: Tensors whose optimizer state is dropped, by the policy of the method. Default: those in `values`.
        parts: New values of parts of further tensors.
        guards: Functions that return context managers. They are entered before the first write and, after an error,
            restore what `then` has changed.
        check: Runs when the change is complete, e.g. to verify after the next optimizer step that the weights are still
            the new ones.

    Raises:
        TypeError: If `values` is not a mapping from tensors to tensors.
        ValueError: If a new value has another shape than its tensor.
    """

    values: Mapping[Tensor, Tensor] = field(default_factory=dict)
    report: Report | None = None
    weights: Sequence[WeightView] = ()
    then: Callable[[], None] = lambda: None
    left_out: Sequence[str] = ()
    touched: Collection[Tensor] | None = None
    parts: Sequence[Write] = ()
    guards: Sequence[Callable[[], AbstractContextManager[None]]] = ()
    check: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        for tensor, new in self.values.items():
            if not isinstance(tensor, Tensor) or not isinstance(new, Tensor):
                kinds = f"{type(tensor).__name__} and {type(new).__name__}"
                raise TypeError(f"`values` must be new tensors by the tensors that they replace, got {kinds}")
            if local(tensor).shape != local(new).shape:
                raise ValueError(
                    f"a new value of shape {tuple(new.shape)} is given for a tensor of shape {tuple(tensor.shape)}"
                )

    def followed_by(
        self, *calls: Callable[[], object], guard: Callable[[], AbstractContextManager[None]] | None = None
    ) -> "Change":
        """Return a change with idempotent calls added after `then`, and with a further guard."""

        def in_order() -> None:
            for call in (self.then, *calls):
                call()

        return replace(self, then=in_order, guards=(*self.guards, *([] if guard is None else [guard])))

    def apply(self) -> Report:
        """Warn about what is left out, then make the change."""
        for sentence in self.left_out if rank() == 0 else ():
            show_warning(f"the change {sentence}")
        self.make()
        return self.report or Report()

    @torch.no_grad()
    def make(self) -> None:
        """Write the new values in place, then call `then`. A second call changes nothing.

        After an error everything is restored. After Ctrl-C the change is completed before KeyboardInterrupt is raised.
        """
        with ExitStack() as stack:
            stack.enter_context(same_tensors_after_error(self.values))
            stack.enter_context(undone_after_error((part.view_of(part.tensor), part.index) for part in self.parts))
            for guard in self.guards:
                stack.enter_context(guard())
            insist(self._write, after_errors=False)
        self.check()

    def _write(self) -> None:
        for tensor, new in self.values.items():
            distinct(tensor).copy_(distinct(new, like=tensor))
        for part in self.parts:
            part.into(part.tensor)
        self.then()

    @torch.no_grad()
    def spectra(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return, before `apply`, the singular values of each finite weight before and after, by name, on the CPU."""
        return _spectra(self.weights), _spectra(_copies(self.weights, self.values))


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
    own = rank() if share_work else 0
    owners = assign([cost(view.shape) for view in weights], ranks)
    # Sharded weights are gathered by all ranks together, before each goes its own way; others are not copied.
    read = {index: whole for index, whole in enumerate(map(WeightView.read, weights)) if owners[index] == own}
    rows = torch.zeros(len(weights), len(COLUMNS), device=weights[0].parameter.device)
    require_finite(  # zeros for weights of other ranks
        {view.name: read.get(index, rows) for index, view in enumerate(weights)}, ranks > 1
    )
    parameters: list[Tensor] = list(dict.fromkeys(view.parameter for view in weights))
    values = {parameter: parameter.detach().clone() for parameter in parameters}
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
    looked_at = weights if measure else ()
    report = replace(report_of(looked_at, rows), taken=matrices_in_words(weights))
    return Change(values | dict(others or {}), report, looked_at)


@torch.no_grad()
def new_values(pairs: Iterable[tuple[Tensor, Tensor]]) -> dict[Tensor, Tensor]:
    """Return whole new values of tensors, of any dtype and device, as values of the same dtype, device and sharding."""
    values: dict[Tensor, Tensor] = {}
    for tensor, whole in pairs:
        if tensor.shape != whole.shape:
            shapes = f"{tuple(whole.shape)} is given for a tensor of shape {tuple(tensor.shape)}"
            raise ValueError(f"a new value of shape {shapes}; no value has been changed")
        values[tensor] = torch.empty_like(tensor)
        put(values[tensor], whole)
    return values


@torch.no_grad()
def measured(change: Change, model: nn.Module, measure: bool = True) -> Change:
    """Add a report on the weights of `Weights()` that a change replaces, unless it has a report."""
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
    return replace(change, report=replace(report, taken=taken), weights=weights)


def measurable(model: nn.Module, touched: Collection[Tensor]) -> Sequence[WeightView]:
    """Return the weights of a model to report on: those of `Weights()`, or none if it finds none."""
    try:
        return [view for view in Weights().select(model) if view.parameter in touched]
    except ValueError:
        return ()


def require_finite(tensors: Mapping[str, Tensor], by_ranks: bool = False) -> None:
    """Raise a ValueError that names each tensor that holds a NaN or Inf, on all ranks that share the work.

    Each rank checks its part of sharded tensors. `by_ranks`: each rank holds finite placeholders for the weights of
    others. Tensors on the meta device are an error, too.
    """
    require_data(tensors)
    found = [~_is_finite(tensor) for tensor in tensors.values()]  # on the devices of the tensors
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
            f"no values yet in {some(empty)} (meta device): first make them, by `model.to_empty(device=…)` and an"
            " initialization, or by `model.load_state_dict(…, assign=True)`"
        )


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


def _spectra(weights: Sequence[WeightView]) -> dict[str, Tensor]:
    matrices = {view.name: as_matrices(view.read(), view.groups) for view in weights}
    finite = read([_is_finite(matrix) for matrix in matrices.values()])
    return {
        name: singular_values_of_finite(matrix).flatten().cpu()
        for (name, matrix), is_finite in zip(matrices.items(), finite, strict=True)
        if is_finite
    }


def cost(shape: Sequence[int]) -> int:
    """Relative cost of a new weight: the multiplications of one Gram matrix."""
    return math.prod(shape) * min(shape[:2])


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


def _is_finite(tensor: Tensor) -> Tensor:
    """Return whether all entries are finite, by minimum and maximum: ten times as fast as `isfinite`."""
    tensor = local(tensor)
    if tensor.is_complex() or not tensor.numel():
        return tensor.isfinite().all()
    return torch.stack(torch.aminmax(tensor)).isfinite().all()
