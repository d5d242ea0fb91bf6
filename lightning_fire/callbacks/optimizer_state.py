"""What becomes of an optimizer's running averages when the weights they belong to are replaced."""

from collections.abc import Iterable
from typing import Literal

from lightning.pytorch import Trainer
from torch.nn import Parameter
from torch.optim import Optimizer

OptimizerPolicy = Literal["keep", "touched", "all"]


def forget_state(policy: OptimizerPolicy, optimizers: Iterable[Optimizer], touched: Iterable[Parameter]) -> None:
    """Drop optimizer state (moments, step counts), so that it is made anew at the next step.

    Learning-rate schedulers and parameter groups stay as they are.

    Args:
        policy: `"keep"` drops nothing, `"touched"` the state of the parameters in `touched`, `"all"` everything.
        optimizers: The optimizers to act on.
        touched: Parameters whose values have been replaced, wholly or in part.
    """
    if policy == "keep":
        return
    touched = list(touched)
    for optimizer in optimizers:
        if policy == "all":
            optimizer.state.clear()
        for parameter in touched:
            optimizer.state.pop(parameter, None)


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
