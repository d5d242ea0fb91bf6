"""The optimizers of a training: their parameters, and the reset of their state when weights are replaced."""

import inspect
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lightning_fire.distributed import warn

Optimizers = Optimizer | Iterable[Optimizer] | Mapping[Any, Optimizer]
OptimizerPolicy = Literal["keep", "touched", "all"]

# State that torch's optimizers and schedule-free ones make at the first step, and not of zeros.
_OF_WEIGHT = "ax", "z"
_OF_RATE = "step_size"


@torch.no_grad()
def drop_state(optimizers: Optimizers, parameters: Iterable[Tensor] | None = None) -> None:
    """Drop the optimizer state (moments, step counts) of parameters; the next step creates it again.

    State that a class creates in `__init__`, as Adagrad does, is taken from a new optimizer of the class with the same
    settings; a warning names a class that cannot be made. LBFGS has one state for all its parameters: it is dropped if
    any of them is given. Fused SGD needs the momentum of all parameters of a group or of none: if others keep theirs,
    that of a given one becomes 0. Learning rates, counters of parameter groups and other settings stay.

    Args:
        optimizers: One or several; those that they wrap are included.
        parameters: The parameters whose state to drop. Default: all.

    Raises:
        TypeError: If an object is not an optimizer.

    Example:
        >>> weight = torch.nn.Parameter(torch.ones(1))
        >>> optimizer = torch.optim.Adam([weight])
        >>> weight.sum().backward()
        >>> optimizer.step()
        >>> drop_state(optimizer)
        >>> len(optimizer.state)
        0
    """
    given = None if parameters is None else set(parameters)
    for optimizer in with_inner(as_list(optimizers)):
        chosen = [parameter for parameter in stepped_by(optimizer) if given is None or parameter in given]
        if isinstance(optimizer, LBFGS):
            chosen = list(stepped_by(optimizer)) if chosen else []
        new, zeroed = state_of_new(optimizer, set(chosen)), _stepped_together(optimizer, chosen)
        for parameter in chosen:
            state = optimizer.state.pop(parameter, None)
            if new.get(parameter):
                optimizer.state[parameter] = new[parameter]
            elif state and parameter in zeroed:
                optimizer.state[parameter] = {key: torch.zeros_like(value) for key, value in state.items()}


def reset_of_entries(optimizers: Iterable[Any], parameter: Tensor) -> Iterator[tuple[Tensor, Tensor | float]]:
    """Iterate over the optimizer state of a parameter that has its shape, each with the values of a new optimizer.

    Yields:
        A tensor of state, and its values at the start: a number, or a tensor of the same shape. If it is `parameter`
        itself, the state starts as a copy of the weight.
    """
    for optimizer in with_inner(optimizers):
        state = optimizer.state.get(parameter, {})
        new = state_of_new(optimizer, {parameter}).get(parameter, {}) if state else {}
        groups = [group for group in optimizer.param_groups if any(p is parameter for p in group["params"])]
        for key, value in state.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape and parameter.ndim:
                start = new.get(key, parameter if key in _OF_WEIGHT else groups[0]["lr"] if key == _OF_RATE else 0.0)
                is_copy = isinstance(start, Tensor) and start is not parameter and torch.equal(start, parameter)
                yield value, parameter if is_copy else start


def state_of_new(optimizer: Any, parameters: Set[Tensor]) -> Mapping[Tensor, Any]:
    """Return the state that a new optimizer of the class creates before its first step; empty for most classes."""
    names = inspect.signature(type(optimizer)).parameters
    settings = {name: value for name, value in getattr(optimizer, "defaults", {}).items() if name in names}
    groups = [{**group, "params": [p for p in group["params"] if p in parameters]} for group in optimizer.param_groups]
    groups = [{key: group[key] for key in group if key != "param_names"} for group in groups if group["params"]]

    def new(groups: list[dict[str, Any]]) -> Any:
        try:
            return type(optimizer)(groups, **settings)
        except Exception:  # of a class without groups
            return type(optimizer)([p for group in groups for p in group["params"]], **settings)

    try:
        small = [{**group, "params": [nn.Parameter(torch.zeros(1, 1))]} for group in groups[:1]]
        if not groups or not any(new(small).state.values()):
            return {}
        copies = {parameter: nn.Parameter(parameter.detach().clone()) for parameter in parameters}
        made = new([{**group, "params": [copies[p] for p in group["params"]]} for group in groups])
        return {parameter: made.state[copy] for parameter, copy in copies.items()}
    except Exception as error:  # of any class, of any library
        if not type(optimizer).__module__.startswith("torch.") and with_inner([optimizer]) == [optimizer]:
            warn(
                f"the initial state of {type(optimizer).__name__} is not known, as it cannot be made from its settings"
                f" ({error}): the state of parameters with new weights is dropped",
                optimizer,
            )
        return {}


def _stepped_together(optimizer: Any, chosen: Collection[Tensor]) -> set[Tensor]:
    """Return the parameters of fused SGD that are chosen without others of their group."""
    fused = (group["params"] for group in optimizer.param_groups if isinstance(optimizer, SGD) and group.get("fused"))
    return {parameter for group in fused if not set(group) <= set(chosen) for parameter in group}


def as_list(optimizers: Optimizers) -> list[Optimizer]:
    """Return one optimizer, several, or those of a mapping as a list.

    An object counts as an optimizer if it has `param_groups` and a `state` by parameter, as torch's have.

    Raises:
        TypeError: If an object is not an optimizer.
    """
    given: list[Any] = [optimizers]
    if isinstance(optimizers, Mapping):
        given = list(optimizers.values())
    elif isinstance(optimizers, Iterable) and not isinstance(optimizers, str | Tensor | nn.Module):
        given = list(optimizers)
    for wrong in (each for each in given if not is_optimizer(each)):
        advice = "An optimizer has `param_groups`, and a dict `state` with the state of each parameter."
        if isinstance(wrong, LRScheduler):
            advice = "Give the optimizer of the schedule, `scheduler.optimizer`."
        elif hasattr(wrong, "apply_gradients"):  # of Keras
            advice = "Give none, and then `compile` the model with a new optimizer."
        got = "None" if wrong is None else type(wrong).__name__
        raise TypeError(f"`optimizers` must be an optimizer, or several of them, got {got}. {advice}")
    return given


def with_inner(optimizers: Iterable[Any]) -> list[Any]:
    """Return optimizers and those in their attributes, as of wrappers and ZeroRedundancyOptimizer."""
    found: list[Any] = []
    for optimizer in optimizers:
        inner = [held for held in vars(optimizer).values() if is_optimizer(held)]
        # a wrapper of another library may only show the state of the optimizer in it
        shows = not isinstance(optimizer, Optimizer) and any(held.state is optimizer.state for held in inner)
        found += [*([] if shows else [optimizer]), *with_inner(inner)]
    return list({id(each): each for each in found}.values())


def parameters_of(optimizers: Iterable[Any]) -> set[Tensor]:
    """Return the parameters that optimizers, and those that they wrap, step."""
    return {parameter for optimizer in with_inner(optimizers) for parameter in stepped_by(optimizer)}


def stepped_by(optimizer: Any) -> Iterator[Tensor]:
    """Iterate over the parameters that an optimizer steps."""
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def is_optimizer(thing: Any) -> bool:
    """Return whether an object has `param_groups` and a `state` by parameter, as torch's optimizers have."""
    return hasattr(thing, "param_groups") and isinstance(getattr(thing, "state", None), Mapping)
