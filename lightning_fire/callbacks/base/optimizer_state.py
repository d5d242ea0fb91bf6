"""What becomes of an optimizer's running averages when the weights they belong to are replaced."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor
from torch.optim import LBFGS, SGD, Optimizer

OptimizerPolicy = Literal["keep", "touched", "all"]


def forget_state(policy: OptimizerPolicy, optimizers: Iterable[Optimizer], touched: Iterable[Tensor]) -> None:
    """Drop optimizer state (moments, step counts), so that the next step initializes it. A second call changes nothing.

    State of optimizers that these wrap is dropped, too. The state of LBFGS belongs to all its parameters together and
    is dropped if one of them is touched. Fused SGD needs the momentum of all parameters of a group or of none: where
    others keep theirs, that of a touched one is set to 0. The next step is the same as without a momentum, but
    `1 - dampening` times as large if SGD has a dampening. Learning-rate schedulers and parameter groups stay.

    Args:
        policy: `"keep"` drops nothing, `"touched"` the state of the parameters in `touched`, `"all"` everything.
        optimizers: The optimizers to act on. Tensors kept outside their state are not dropped; a warning names them.
        touched: Parameters whose values have been replaced, wholly or in part.
    """
    if policy == "keep":
        return
    optimizers, touched = list(optimizers), set(touched)
    for optimizer in with_inner(optimizers):
        _forget(policy, optimizer, touched)
    for optimizer in optimizers:  # a warning may be an error
        parameters = _parameters_of(optimizer)
        if kept := _kept_elsewhere(optimizer, parameters if policy == "all" else parameters & touched):
            rank_zero_warn(
                f"{type(optimizer).__name__} keeps tensors as large as its parameters in {', '.join(kept)}, outside of"
                " their state: they are not dropped at an event."
            )


def with_inner(optimizers: Iterable[Optimizer]) -> list[Optimizer]:
    """Return optimizers, and those that they hold in attributes, as wrappers and ZeroRedundancyOptimizer do.

    Args:
        optimizers: The optimizers.
    """
    found = list(optimizers)
    for optimizer in found:  # grows
        inner = [held for held in _leaves(vars(optimizer)) if isinstance(held, Optimizer)]
        found += [held for held in dict.fromkeys(inner) if held not in found]
    return found


def _forget(policy: OptimizerPolicy, optimizer: Optimizer, touched: set[Tensor]) -> None:
    if policy == "all" or (isinstance(optimizer, LBFGS) and touched & _parameters_of(optimizer)):
        optimizer.state.clear()
        return
    fused = [group["params"] for group in optimizer.param_groups if isinstance(optimizer, SGD) and group.get("fused")]
    zeroed = {parameter for group in fused if not touched.issuperset(group) for parameter in group}
    for parameter in touched & optimizer.state.keys():
        momentum = optimizer.state[parameter].get("momentum_buffer") if parameter in zeroed else None
        if momentum is None:
            del optimizer.state[parameter]
        else:
            optimizer.state[parameter] = {"momentum_buffer": torch.zeros_like(momentum)}


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
    """Refuse an unknown policy.

    Args:
        policy: The value of an `optimizer` argument.

    Raises:
        ValueError: If it is none of the three.
    """
    if policy not in ("keep", "touched", "all"):
        raise ValueError(f"`optimizer` must be 'keep', 'touched' or 'all', got {policy!r}")


def loss_scale(trainer: Trainer, optimizer: Optimizer) -> float:
    """Return the factor that is still on the gradients: fused optimizers take the scale of the loss out themselves.

    Args:
        trainer: The Trainer, before a step of the optimizer.
        optimizer: The optimizer.
    """
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    if scaler is None or not getattr(optimizer, "_step_supports_amp_scaling", False):
        return 1.0
    return scaler.get_scale()
