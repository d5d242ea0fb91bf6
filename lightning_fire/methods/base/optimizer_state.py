"""Reset of optimizer state, such as moments, when the weights it belongs to are replaced."""

from collections.abc import Iterable, Iterator
from typing import Literal

import torch
from torch import Tensor
from torch.optim import LBFGS, Optimizer

from lightning_fire.distributed import warn
from lightning_fire.methods.base.beginning import Known, begin, is_plain, known, starts_in
from lightning_fire.methods.base.optimizers import Optimizers, leaves, listed, stepped_by, with_inner

OptimizerPolicy = Literal["keep", "touched", "all"]


def reset_optimizer_state(
    optimizers: Optimizers, parameters: Iterable[Tensor] | None = None, zero: bool = False
) -> None:
    """Reset the optimizer state of parameters to that of a new optimizer. Idempotent.

    State (moments, step counts) is dropped, so that the next step initializes it. State that the class creates in
    `__init__` is created again, with new copies of weights. Step counts of a parameter group are reset if all its
    parameters are. The initial state is found by stepping small optimizers of the same class with the same settings; a
    warning names an optimizer whose next steps would differ from those of a new one.

    State of wrapped optimizers is dropped, too. LBFGS has one state for all its parameters: it is dropped if any of
    them is given. Fused SGD needs the momentum of all parameters of a group or of none: if others keep theirs, that of
    a given one is set to 0; with a dampening its next step is `1 - dampening` times as large. Learning rates,
    schedulers and other settings stay.

    Args:
        optimizers: One or several, also of another library, see `listed`. Tensors stored outside of their state are not
            dropped; a warning names them.
        parameters: The parameters whose state to drop. Default: all.
        zero: Set the state, step counts included, to 0 in place instead of dropping it, for code that holds its
            tensors, such as a captured CUDA graph.

    Raises:
        TypeError: If an object is not an optimizer.

    Example:
        >>> weight = torch.nn.Parameter(torch.ones(1))
        >>> optimizer = torch.optim.Adam([weight])
        >>> weight.sum().backward()
        >>> optimizer.step()
        >>> reset_optimizer_state(optimizer)
        >>> len(optimizer.state)
        0
    """
    given = listed(optimizers)
    chosen = None if parameters is None else set(parameters)
    warnings: list[tuple[str, Optimizer]] = []
    for optimizer in given:
        if zero:
            for part in with_inner([optimizer]):
                _zero(part, chosen)
        elif is_plain(optimizer):
            _drop(optimizer, chosen)
        else:
            warnings += [(sentence, optimizer) for what in known(optimizer) for sentence in _begin(what, chosen)]
        own = stepped_by(optimizer)
        if kept := _kept_elsewhere(optimizer, own if chosen is None else own & chosen, chosen or set()):
            kind = type(optimizer).__name__
            sentence = f"{kind} keeps tensors as large as its parameters in {', '.join(kept)}, outside of their state:"
            warnings.append((f"{sentence} they are not dropped at an event.", optimizer))
    for sentence, optimizer in warnings:  # last, as a warning may be an error
        warn(sentence, optimizer)


def follow_policy(policy: OptimizerPolicy, optimizers: Optimizers, touched: Iterable[Tensor]) -> None:
    """Drop optimizer state as an `optimizer_state` argument says: none, that of the `touched` tensors, or all."""
    if policy != "keep":
        reset_optimizer_state(optimizers, None if policy == "all" else touched)


def _begin(what: Known, chosen: set[Tensor] | None) -> Iterator[str]:
    """Reset the state of parameters; yield a sentence if their next steps will differ from those of a new optimizer."""
    kind = type(with_inner([what.root])[-1]).__name__  # of a wrapper: what it wraps
    with_state = {key for part, _ in what.parts for key in part.state if isinstance(key, Tensor)}
    if chosen is not None and with_state and with_state <= chosen:
        chosen = None
    groups = [with_state.intersection(group["params"]) for group in what.root.param_groups]
    by_group = not any(beginning and (beginning.attributes or beginning.shared) for _, beginning in what.parts)
    every = chosen is None or (by_group and all(group <= chosen or group.isdisjoint(chosen) for group in groups))
    every |= not with_state
    if chosen is not None and chosen.isdisjoint(with_state or stepped_by(what.root)):
        begin(what, chosen)
        return
    if not what.is_known:
        shown = [id(part.state) for part in with_inner([what.root]) if part is not what.root]
        begin(what, chosen)
        if with_state and id(what.root.state) not in shown:
            yield (
                f"the initial state of a new {kind} is unknown, as it cannot be created from its settings or stepped"
                " with gradients alone: its state is dropped, and its next steps may differ from those of a new one"
            )
        return
    as_new = what.steps_as_new(every)
    if as_new is None:
        _rewrite(what, chosen)
    else:
        begin(what, chosen)
    if not as_new:
        beginnings = [beginning for _, beginning in what.parts if beginning]
        keys = {key for each in beginnings for own in (each.attributes, *each.groups) for key in own}
        if not every and keys and what.steps_as_new(True):
            yield (
                f"{kind} keeps {', '.join(map(repr, sorted(keys)))} for several parameters together, which is kept at"
                " an event that replaces some of them: their next steps differ from those of a new optimizer."
                ' With optimizer_state="all" they do not.'
            )
        else:
            yield f"after an event the next steps of {kind} differ from those of a new optimizer"


@torch.no_grad()
def _rewrite(what: Known, chosen: set[Tensor] | None) -> None:
    """Set state that a step needs to its initial value."""
    for parameter in stepped_by(what.root) if chosen is None else chosen:
        for tensor, start, _ in starts_in(what.parts, parameter):
            if start is not None:
                tensor.copy_(parameter if start == "weight" else torch.full_like(tensor, start))


def _drop(optimizer: Optimizer, chosen: set[Tensor] | None) -> None:
    """Drop the state of an optimizer that is not one of torch; fastai keeps settings there, such as `do_wd`."""
    for parameter in set(optimizer.state) if chosen is None else chosen & optimizer.state.keys():
        state = optimizer.state[parameter].items()
        optimizer.state[parameter] = {name: value for name, value in state if isinstance(value, bool)}


@torch.no_grad()
def _zero(optimizer: Optimizer, chosen: set[Tensor] | None) -> None:
    if isinstance(optimizer, LBFGS):  # its state is not an average: lists of steps, and the previous gradient
        if chosen is None or chosen & stepped_by(optimizer):
            optimizer.state.clear()
        return
    for parameter in optimizer.state.keys() if chosen is None else chosen & optimizer.state.keys():
        state = optimizer.state[parameter]
        for name, value in state.items():
            if isinstance(value, Tensor):
                value.zero_()
            elif isinstance(value, int | float) and not isinstance(value, bool):
                state[name] = type(value)(0)


def _kept_elsewhere(optimizer: Optimizer, touched: set[Tensor], given: set[Tensor]) -> list[str]:
    """Return the attributes that hold tensors as large as touched parameters, or as all parameters together.

    Those among `given`, copies of weights that follow them, are excluded.
    """
    own, reached = stepped_by(optimizer), with_inner([optimizer])
    parameters = own | given
    shapes, total = {parameter.shape for parameter in touched}, sum(parameter.numel() for parameter in own)
    states, found = [id(one.state) for one in reached], []
    for one in reached if touched else ():
        if type(one).__name__ == "ZeroRedundancyOptimizer":
            continue  # its other attributes are for checkpoints
        for name, value in vars(one).items():
            if id(value) in states:
                value = [kept for key, kept in value.items() if key not in parameters]
            others = [held for held in leaves(value) if isinstance(held, Tensor) and held not in parameters]
            if any(held.ndim and (held.shape in shapes or held.shape == (total,)) for held in others):
                found.append(f"{type(one).__name__}.{name}")
    return found
