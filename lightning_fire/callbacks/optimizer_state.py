"""What becomes of an optimizer's running averages when the weights they belong to are replaced."""

from collections.abc import Iterable
from typing import Literal

import torch
from lightning.pytorch import Trainer
from torch import Tensor
from torch.optim import SGD, Optimizer

OptimizerPolicy = Literal["keep", "touched", "all"]


def forget_state(policy: OptimizerPolicy, optimizers: Iterable[Optimizer], touched: Iterable[Tensor]) -> None:
    """Drop optimizer state (moments, step counts), so that the next step initializes it. A second call changes nothing.

    Fused SGD needs the momentum of all parameters of a group or of none: where others keep theirs, that of a touched
    one is set to 0. The next step is the same as without a momentum, but `1 - dampening` times as large if SGD has a
    dampening. Learning-rate schedulers and parameter groups stay as they are.

    Args:
        policy: `"keep"` drops nothing, `"touched"` the state of the parameters in `touched`, `"all"` everything.
        optimizers: The optimizers to act on.
        touched: Parameters whose values have been replaced, wholly or in part.
    """
    if policy == "keep":
        return
    touched = set(touched)
    for optimizer in optimizers:
        _forget(policy, optimizer, touched)


def _forget(policy: OptimizerPolicy, optimizer: Optimizer, touched: set[Tensor]) -> None:
    if policy == "all":
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
