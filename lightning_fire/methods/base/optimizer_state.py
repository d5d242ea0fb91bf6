"""Reset of optimizer state, such as moments, when the weights it belongs to are replaced."""

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lightning_fire._private import is_a
from lightning_fire.distributed import warn

OptimizerPolicy = Literal["keep", "touched", "all"]
Optimizers = Optimizer | Iterable[Optimizer] | Mapping[Any, Optimizer]


def listed(optimizers: Optimizers) -> list[Optimizer]:
    """Return one optimizer, several, or those of a mapping as a list.

    An optimizer of another library is one if it has, as torch's do, `param_groups` and a `state` by parameter. What
    Lightning has instead of an optimizer where a module has none is left out.

    Raises:
        TypeError: If something else is among them.
    """
    given: list[Any] = [optimizers]
    if not _is_optimizer(optimizers) and isinstance(optimizers, Mapping):
        given = list(optimizers.values())
    elif not _is_optimizer(optimizers) and isinstance(optimizers, Iterable):
        given = [optimizers] if isinstance(optimizers, str | Tensor | nn.Module) else list(optimizers)
    for wrong in (each for each in given if not _is_optimizer(each)):
        advice = "An optimizer has `param_groups`, and a dict `state` with the state of each parameter."
        if isinstance(wrong, LRScheduler):
            advice = "Give the optimizer of the schedule, `scheduler.optimizer`."
        got = "None" if wrong is None else type(wrong).__name__
        raise TypeError(f"`optimizers` must be an optimizer, or several of them, got {got}. {advice}")
    return [optimizer for optimizer in given if not is_a(optimizer, "_MockOptimizer")]


def reset_optimizer_state(
    optimizers: Optimizers, parameters: Iterable[Tensor] | None = None, zero: bool = False
) -> None:
    """Drop optimizer state (moments, step counts), so that the next step initializes it. A second call changes nothing.

    State of optimizers that these wrap is dropped, too. The state of LBFGS belongs to all its parameters together and
    is dropped if one of them is given. Fused SGD needs the momentum of all parameters of a group or of none: where
    others keep theirs, that of a given one is set to 0. The next step is the same as without a momentum, but
    `1 - dampening` times as large if SGD has a dampening. Learning-rate schedulers and parameter groups stay.

    Args:
        optimizers: One or several, also of another library, see `listed`. Tensors kept outside their state are not
            dropped; a warning names them.
        parameters: The parameters whose state to drop. Default: all.
        zero: Set the state to 0 in place instead of dropping it, step counts too, for code that keeps its tensors, such
            as a captured CUDA graph.

    Raises:
        TypeError: If something else than an optimizer is given.

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
    for optimizer in with_inner(given):
        (_zero if zero else _drop)(optimizer, chosen)
    for optimizer in given:  # a warning may be an error
        own = _parameters_of(optimizer)
        if kept := _kept_elsewhere(optimizer, own if chosen is None else own & chosen):
            warn(
                f"{type(optimizer).__name__} keeps tensors as large as its parameters in {', '.join(kept)}, outside of"
                " their state: they are not dropped at an event.",
                optimizer,
            )


def follow_policy(policy: OptimizerPolicy, optimizers: Optimizers, touched: Iterable[Tensor]) -> None:
    """Drop optimizer state by an `optimizer_state` argument: none, that of the `touched` tensors, or all of it."""
    if policy != "keep":
        reset_optimizer_state(optimizers, None if policy == "all" else touched)


def with_inner(optimizers: Optimizers) -> list[Optimizer]:
    """Return optimizers, and those that they hold in attributes, as wrappers and ZeroRedundancyOptimizer do.

    A wrapper of another library that shows the state of an optimizer of torch in it is left out.
    """
    found = listed(optimizers)
    for optimizer in found:  # grows
        inner = [held for held in _leaves(vars(optimizer)) if _is_optimizer(held)]
        found += [held for held in {id(held): held for held in inner}.values() if not any(held is o for o in found)]
    shown = [id(optimizer.state) for optimizer in found if isinstance(optimizer, Optimizer)]
    return [each for each in found if isinstance(each, Optimizer) or id(each.state) not in shown]


def parameters_of(optimizers: Optimizers) -> set[Tensor]:
    """Return the parameters that optimizers step, and those that the optimizers in them step."""
    return set[Tensor]().union(*map(_parameters_of, [*listed(optimizers), *with_inner(optimizers)]))


def _drop(optimizer: Optimizer, chosen: set[Tensor] | None) -> None:
    if not isinstance(optimizer, Optimizer):  # fastai keeps settings there, such as `do_wd`
        for parameter in set(optimizer.state) if chosen is None else chosen & optimizer.state.keys():
            state = optimizer.state[parameter].items()
            optimizer.state[parameter] = {name: value for name, value in state if isinstance(value, bool)}
        return
    if chosen is None or (isinstance(optimizer, LBFGS) and chosen & _parameters_of(optimizer)):
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


@torch.no_grad()
def _zero(optimizer: Optimizer, chosen: set[Tensor] | None) -> None:
    if isinstance(optimizer, LBFGS):  # its state is not an average: lists of steps, and the previous gradient
        _drop(optimizer, chosen)
        return
    for parameter in optimizer.state.keys() if chosen is None else chosen & optimizer.state.keys():
        state = optimizer.state[parameter]
        for name, value in state.items():
            if isinstance(value, Tensor):
                value.zero_()
            elif isinstance(value, int | float) and not isinstance(value, bool):
                state[name] = type(value)(0)


def _kept_elsewhere(optimizer: Optimizer, touched: set[Tensor]) -> list[str]:
    """Return the attributes that hold tensors as large as touched parameters, or as all parameters together."""
    parameters, reached = _parameters_of(optimizer), with_inner([optimizer])
    shapes, total = {parameter.shape for parameter in touched}, sum(parameter.numel() for parameter in parameters)
    states, found = [id(one.state) for one in reached], []
    for one in reached if touched else ():
        if type(one).__name__ == "ZeroRedundancyOptimizer":
            continue  # what it holds beside its inner optimizer is for checkpoints
        for name, value in vars(one).items():
            if id(value) in states:
                value = [kept for key, kept in value.items() if key not in parameters]
            others = [held for held in _leaves(value) if isinstance(held, Tensor) and held not in parameters]
            if any(held.ndim and (held.shape in shapes or held.shape == (total,)) for held in others):
                found.append(f"{type(one).__name__}.{name}")
    return found


def _parameters_of(optimizer: Optimizer) -> set[Tensor]:
    return {parameter for group in optimizer.param_groups for parameter in group["params"]}


def _leaves(value: Any) -> Iterator[Any]:
    """Go through what containers hold."""
    if isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _leaves(item)
    else:
        yield value


def check_policy(policy: str) -> None:
    """Raise a ValueError for an unknown policy, the argument `optimizer_state`."""
    if policy not in get_args(OptimizerPolicy):
        raise ValueError(f"`optimizer_state` must be 'keep', 'touched' or 'all', got {policy!r}")


def _is_optimizer(thing: Any) -> bool:
    if isinstance(thing, Optimizer):
        return True
    state, groups = getattr(thing, "state", None), getattr(thing, "param_groups", None)
    return isinstance(state, MutableMapping) and isinstance(groups, list) and all("params" in group for group in groups)
