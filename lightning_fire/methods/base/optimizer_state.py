"""Reset of optimizer state, such as moments, when the weights it belongs to are replaced."""

from collections.abc import Iterable
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.optim import LBFGS, SGD, Optimizer

from lightning_fire.distributed import warn
from lightning_fire.methods.base.optimizers import Optimizers, leaves, listed, stepped_by, with_inner

OptimizerPolicy = Literal["keep", "touched", "all"]


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
        own = stepped_by(optimizer)
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


def _drop(optimizer: Optimizer, chosen: set[Tensor] | None) -> None:
    if not isinstance(optimizer, Optimizer):  # fastai keeps settings there, such as `do_wd`
        for parameter in set(optimizer.state) if chosen is None else chosen & optimizer.state.keys():
            state = optimizer.state[parameter].items()
            optimizer.state[parameter] = {name: value for name, value in state if isinstance(value, bool)}
        return
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
    parameters, reached = stepped_by(optimizer), with_inner([optimizer])
    shapes, total = {parameter.shape for parameter in touched}, sum(parameter.numel() for parameter in parameters)
    states, found = [id(one.state) for one in reached], []
    for one in reached if touched else ():
        if type(one).__name__ == "ZeroRedundancyOptimizer":
            continue  # what it holds beside its inner optimizer is for checkpoints
        for name, value in vars(one).items():
            if id(value) in states:
                value = [kept for key, kept in value.items() if key not in parameters]
            others = [held for held in leaves(value) if isinstance(held, Tensor) and held not in parameters]
            if any(held.ndim and (held.shape in shapes or held.shape == (total,)) for held in others):
                found.append(f"{type(one).__name__}.{name}")
    return found


def check_policy(policy: str) -> None:
    """Raise a ValueError for an unknown policy, the argument `optimizer_state`."""
    if policy not in get_args(OptimizerPolicy):
        raise ValueError(f"`optimizer_state` must be 'keep', 'touched' or 'all', got {policy!r}")
