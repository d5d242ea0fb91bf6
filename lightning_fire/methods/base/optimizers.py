"""The optimizers of a training, those that they wrap, and their parameters."""

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lightning_fire._private import is_a, skipped_its_step

Optimizers = Optimizer | Iterable[Optimizer] | Mapping[Any, Optimizer]

_SHORT = 100  # longer containers, such as a replay buffer, are not searched


def listed(optimizers: Optimizers) -> list[Optimizer]:
    """Return one optimizer, several, or those of a mapping as a list.

    An object counts as an optimizer if it has `param_groups` and a `state` by parameter, as torch's have. Lightning's
    placeholder for a module without optimizers is skipped.

    Raises:
        TypeError: If an object is not an optimizer.
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
        elif hasattr(wrong, "apply_gradients"):  # of Keras
            advice = "Give none, and then `compile` the model with a new optimizer."
        got = "None" if wrong is None else type(wrong).__name__
        raise TypeError(f"`optimizers` must be an optimizer, or several of them, got {got}. {advice}")
    return [optimizer for optimizer in given if not is_a(optimizer, "_MockOptimizer")]


def with_inner(optimizers: Optimizers) -> list[Optimizer]:
    """Return optimizers and those in their attributes, as of wrappers and ZeroRedundancyOptimizer.

    Skips a wrapper of another library that only exposes the state of the torch optimizer in it.
    """
    found = listed(optimizers)
    for optimizer in found:  # grows
        inner = [held for held in leaves(vars(optimizer)) if _is_optimizer(held)]
        found += [held for held in {id(held): held for held in inner}.values() if not any(held is o for o in found)]
    shown = [id(optimizer.state) for optimizer in found if isinstance(optimizer, Optimizer)]
    return [each for each in found if isinstance(each, Optimizer) or id(each.state) not in shown]


def parameters_of(optimizers: Optimizers) -> set[Tensor]:
    """Return the parameters that optimizers and the optimizers they wrap step."""
    return set[Tensor]().union(*map(stepped_by, [*listed(optimizers), *with_inner(optimizers)]))


def resting(optimizers: Optimizers) -> set[Tensor]:
    """Return the parameters of groups with a learning rate of 0 that no schedule raises, beside groups with another."""
    found = set[Tensor]()
    for optimizer in listed(optimizers):
        rates = [bool(group.get("lr", 1)) or bool(group.get("initial_lr")) for group in optimizer.param_groups]
        of = zip(rates, optimizer.param_groups, strict=True)
        found |= {parameter for moves, group in of if any(rates) and not moves for parameter in group["params"]}
    return found


def held_by(model: nn.Module) -> list[Optimizer]:
    """Return the optimizers in attributes of a model and its submodules, also in short lists and dicts."""
    attributes = (value for part in model.modules() for value in vars(part).values())
    short = (value for value in attributes if not (isinstance(value, Mapping | list | tuple) and len(value) > _SHORT))
    held = (inner for value in short for inner in leaves(value) if _is_optimizer(inner))
    return list({id(each): each for each in held}.values())


def accumulates(optimizer: Any) -> bool:
    """Return whether an optimizer is the wrapper of accelerate and only accumulates now: its `step` does nothing."""
    return not getattr(getattr(optimizer, "gradient_state", None), "sync_gradients", True)


def has_stepped(optimizer: Any) -> bool:
    """Return whether the last call of `step` took a step: False only for the wrapper of accelerate."""
    return not accumulates(optimizer) and not skipped_its_step(optimizer)


def stepped_by(optimizer: Optimizer) -> set[Tensor]:
    """Return the parameters that an optimizer steps."""
    return {parameter for group in optimizer.param_groups for parameter in group["params"]}


def leaves(value: Any) -> Iterator[Any]:
    """Iterate over the contents of nested containers."""
    if isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from leaves(item)
    else:
        yield value


def _is_optimizer(thing: Any) -> bool:
    state, groups = getattr(thing, "state", None), getattr(thing, "param_groups", None)
    if isinstance(thing, Optimizer) and state is not None:
        return True
    return isinstance(state, MutableMapping) and isinstance(groups, list) and all("params" in group for group in groups)
