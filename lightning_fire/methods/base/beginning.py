"""Initial state of an optimizer: found by stepping small new optimizers, and given to parameters with new weights."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Optimizer

from lightning_fire.methods.base.new_optimizer import arguments_of, in_order, new_like, small, step, unnoticed, warm_up
from lightning_fire.methods.base.optimizers import Optimizers, leaves, listed, stepped_by, with_inner
from lightning_fire.methods.base.seeded import seeded
from lightning_fire.optim import UPGD, Muon

Start = float | Literal["weight"] | None
Path = tuple[Any, ...]
ABSENT = object()


@dataclass(frozen=True)
class Beginning:
    """Initial state of an optimizer.

    Attributes:
        groups: For each parameter group, the initial values of entries that steps write, such as a step count; `ABSENT`
            where the first step creates them.
        shared: State that belongs to no parameter.
        attributes: Initial values of attributes that steps change, such as a step count.
        entries: Initial value of each entry of a parameter's state, by its path in that state: a number, `"weight"` for
            a copy of the parameter, None if neither.
        at_once: Whether the state of a parameter is created before the first step.
        tried: Whether small optimizers could be stepped; if not, e.g. where steps need second derivatives, only
            `at_once` is known.
    """

    groups: Sequence[Mapping[str, Any]]
    shared: Mapping[Any, Any] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    entries: Mapping[Path, Start] = field(default_factory=dict)
    at_once: bool = False
    tried: bool = True


@dataclass(frozen=True)
class Known:
    """Initial states of an optimizer and of the optimizers that it wraps.

    Attributes:
        root: The optimizer.
        parts: The optimizer and those that it wraps, each with its initial state; None if no small one of the class of
            `root` works.
        as_new: Whether the steps after a restart equal those of a new optimizer, by whether all parameters restart;
            None if they fail.
    """

    root: Optimizer
    parts: Sequence[tuple[Optimizer, Beginning | None]]
    as_new: dict[bool, bool | None] = field(default_factory=dict)

    @property
    def is_known(self) -> bool:
        """Whether everything is known."""
        return all(beginning is not None and beginning.tried for _, beginning in self.parts)

    def steps_as_new(self, every: bool) -> bool | None:
        """Return whether small optimizers step like new ones after the restart of all, or of every second, parameter.

        Returns None if that step fails.
        """
        if every not in self.as_new:
            try:
                with unnoticed(self.root):
                    self.as_new[every] = _steps_as_new(self, every)
            except Exception:
                self.as_new[every] = None
        return self.as_new[every]


_WITHOUT_SURPRISE = {
    getattr(torch.optim, name, None)
    for name in ["SGD", "Adam", "AdamW", "NAdam", "RAdam", "RMSprop", "Adadelta", "SparseAdam", "Adafactor", "Muon"]
} | {Muon, UPGD}
"""Classes that make the state of a parameter at its first step, of zeros, and nothing else."""

_learned: WeakKeyDictionary[Any, tuple[list[Beginning | None], dict[bool, bool | None]]] = WeakKeyDictionary()


def known(optimizer: Optimizer) -> list[Known]:
    """Find the initial state of an optimizer; if that fails, of each optimizer that it wraps.

    Found once per optimizer, from steps of small ones of its class.
    """
    if type(optimizer) in _WITHOUT_SURPRISE and not any(group.get("dampening") for group in optimizer.param_groups):
        return [
            Known(optimizer, [(optimizer, Beginning([{}] * len(optimizer.param_groups)))], {True: True, False: True})
        ]
    parts = with_inner([optimizer])
    found, as_new = _learned.get(optimizer, ([], {}))
    if [len(each.groups) for each in found if each] != [len(part.param_groups) for part in parts] and found != [None]:
        try:
            with unnoticed(optimizer):
                found = list(_beginnings(optimizer))
            if [len(each.groups) for each in found if each] != [len(part.param_groups) for part in parts]:
                found = [None]
        except Exception:  # of any class, of any library
            found = [None]
        as_new = {}
        _learned[optimizer] = found, as_new
    if found == [None]:
        inner = [held for held in leaves(vars(optimizer)) if isinstance(held, Optimizer)]
        return [Known(optimizer, [(optimizer, None)]), *(each for held in inner for each in known(held))]
    return [Known(optimizer, list(zip(parts, found, strict=True)), as_new)]


def begin(what: Known, chosen: set[Tensor] | None) -> None:
    """Reset the state of parameters, by default all, to that of a new optimizer.

    Entries of a group are reset if all of its parameters that have a state are chosen.
    """
    stepped = {key for part, _ in what.parts for key in part.state if isinstance(key, Tensor)}
    for part, beginning in what.parts:
        _forget(part, chosen)
        if beginning is None:
            continue
        if chosen is None:
            part.state.update(beginning.shared)
            vars(part).update(beginning.attributes)
        for group, own in zip(part.param_groups, beginning.groups, strict=True):
            if chosen is None or chosen.issuperset(stepped.intersection(group["params"])):
                for key, value in own.items():
                    if value is ABSENT:
                        group.pop(key, None)
                    else:
                        group[key] = value.clone() if isinstance(value, Tensor) else value
    if any(beginning and beginning.at_once for _, beginning in what.parts):
        taken = stepped_by(what.root) if chosen is None else chosen
        with unnoticed(what.root):
            copies = {p: nn.Parameter(p.detach().clone()) for p in in_order(what.root) if p in taken}
            new = new_like(what.root, lambda group: [copies[p] for p in group["params"] if p in copies])
        for (part, _), made in zip(what.parts, with_inner([new]), strict=True):
            part.state.update({p: made.state[copy] for p, copy in copies.items() if made.state.get(copy)})


def parts_of(optimizers: Optimizers) -> list[tuple[Optimizer, Beginning | None]]:
    """Return optimizers and those that they wrap, each with its initial state, None if unknown."""
    plain = [one for one in listed(optimizers) if is_plain(one)]
    others = [known(one) for one in listed(optimizers) if one not in plain]
    return [*((one, None) for one in plain), *(part for found in others for what in found for part in what.parts)]


def is_plain(optimizer: Optimizer) -> bool:
    """Return whether an optimizer is of another library than torch, and wraps none of torch."""
    return not isinstance(optimizer, Optimizer) and with_inner([optimizer]) == [optimizer]


def starts_in(
    parts: Sequence[tuple[Optimizer, Beginning | None]], parameter: Tensor
) -> Iterator[tuple[Tensor, Start, Optimizer]]:
    """Iterate over the tensors in the state of a parameter that have its shape.

    Yields:
        The tensor, its initial value (0 if unknown), and the optimizer.
    """
    seen = set()
    for part, beginning in parts:
        for path, tensor in tensors_in(part.state.get(parameter, {}), parameter):
            if id(tensor) not in seen:
                start = 0.0 if beginning is None else beginning.entries.get(path, 0.0)
                yield tensor, None if tensor.dtype == torch.uint8 else start, part  # codes of numbers
            seen.add(id(tensor))


def tensors_in(state: Any, parameter: Tensor, path: Path = ()) -> Iterator[tuple[Path, Tensor]]:
    """Iterate over the tensors of a state that have the shape of a parameter, by path."""
    if isinstance(state, Mapping | list | tuple | deque):
        for key, value in state.items() if isinstance(state, Mapping) else enumerate(state):
            yield from tensors_in(value, parameter, (*path, key))
    elif isinstance(state, Tensor) and parameter.ndim:
        if state.shape == parameter.shape:
            yield path, state
        elif state.ndim == 1 and state.is_contiguous() and state.numel() == parameter.numel():
            yield path, state.view(parameter.shape)


def _beginnings(optimizer: Optimizer) -> Iterator[Beginning]:
    """Find the initial state: make a small optimizer and step it, first without gradients."""
    new = new_like(optimizer, small)
    parts, parameters = with_inner([new]), in_order(new)
    groups = [[_copied(group) for group in part.param_groups] for part in parts]
    states = [dict(part.state) for part in parts]
    attributes = [_numbers(vars(part)) for part in parts]
    at_once = [any(state.get(parameter) for parameter in parameters) for state in states]
    entries: list[dict[Path, Start]] = [{} for _ in parts]
    for _ in range(10):  # Lookahead copies a weight after some steps
        before = {parameter: parameter.detach().clone() for parameter in parameters}
        if not _works(lambda: step(new, [torch.zeros_like(parameter) for parameter in parameters])):
            break  # PSGD needs gradients
        for part, found in zip(parts, entries, strict=True):
            for parameter in parameters:
                for path, value in tensors_in(part.state.get(parameter, {}), parameter):
                    found.setdefault(path, _start(value, before[parameter], parameter))
    tried = _works(lambda: warm_up(new))
    for part, former, state, held, found, made in zip(parts, groups, states, attributes, entries, at_once, strict=True):
        own = [_own(part, group, old) for group, old in zip(part.param_groups, former, strict=True)]
        changed = {name: value for name, value in held.items() if vars(part).get(name) != value and name[0] != "_"}
        yield Beginning(own, _numbers(state), changed, found, made, tried)


def _works(call: Callable[[], None]) -> bool:
    try:
        call()
    except Exception:  # of any class, of any library
        return False
    return True


def _steps_as_new(what: Known, every: bool) -> bool:
    old = new_like(what.root, small)
    settings = [_copied(group) for group in old.param_groups]
    warm_up(old)
    for group, former in zip(old.param_groups, settings, strict=True):
        names = (arguments_of(old) & former.keys()) - {"params"}
        if any(former[name] is not None and not _same(group[name], former[name]) for name in names):
            return False  # settings that steps change are kept
    parameters = in_order(old)
    chosen = parameters if every else parameters[::2]
    before = [parameter.detach().clone() for parameter in chosen]
    parts = zip(with_inner([old]), (beginning for _, beginning in what.parts), strict=True)
    begin(Known(old, list(parts)), None if every else set(chosen))
    copies = {parameter: nn.Parameter(parameter.detach().clone()) for parameter in parameters}
    new = new_like(old, lambda group: [copies[parameter] for parameter in group["params"]])
    for number in range(2):
        gradients = [torch.randn_like(parameter) for parameter in parameters]
        for optimizer in (old, new):
            with seeded(number, {parameter.device for parameter in parameters}):
                step(optimizer, gradients)
    return all(
        bool((copies[parameter] - parameter).norm() <= 1e-3 * (copies[parameter] - start).norm() + 1e-9)
        for parameter, start in zip(chosen, before, strict=True)
    )


def _forget(optimizer: Optimizer, chosen: set[Tensor] | None) -> None:
    if chosen is None or (isinstance(optimizer, LBFGS) and chosen & stepped_by(optimizer)):
        optimizer.state.clear()
        return
    fused = [group["params"] for group in optimizer.param_groups if isinstance(optimizer, SGD) and group.get("fused")]
    zeroed = {parameter for group in fused if not chosen.issuperset(group) for parameter in group}
    for parameter in chosen & optimizer.state.keys():
        momentum = optimizer.state[parameter].get("momentum_buffer") if parameter in zeroed else None
        if momentum is None:
            del optimizer.state[parameter]
        else:
            optimizer.state[parameter] = {"momentum_buffer": torch.zeros_like(momentum)}


def _start(value: Tensor, before: Tensor, after: Tensor) -> Start:
    first = value.flatten()[0]
    if (value == first).all():
        return first.item()
    near = [torch.allclose(value.to(each.dtype), each, rtol=0.05, atol=1e-3) for each in (before, after)]
    return "weight" if any(near) else None


def _own(optimizer: Optimizer, group: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a group that steps have changed, settings excluded, with their initial values."""
    settings = {"params", "lr"} | arguments_of(optimizer)
    changed = [key for key, value in group.items() if key not in settings and not _same(value, before.get(key, ABSENT))]
    return {key: before.get(key, ABSENT) for key in changed}


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return isinstance(one, Tensor) and isinstance(other, Tensor) and torch.equal(one, other)
    return bool(one == other)


def _numbers(values: Mapping[Any, Any]) -> dict[Any, Any]:
    return {key: value for key, value in values.items() if isinstance(value, int | float)}


def _copied(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value.clone() if isinstance(value, Tensor) else value for key, value in group.items()}
