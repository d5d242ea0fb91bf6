"""Optimization readiness and critical sharpness of a module on the current batch."""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from lightning_fire._private import tree_map
from lightning_fire.callbacks.probing.batches import (
    BatchInHand,
    copied,
    on_all_ranks,
    training_loss,
    without_side_effects,
)
from lightning_fire.callbacks.probing.curvature import (
    WithLoss,
    first_samples,
    in_full_precision,
    num_samples,
    samples,
    widened,
)
from lightning_fire.messages import tell_once
from lightning_fire.methods.base.loop import gradients_of
from lightning_fire.methods.base.one_step import alone, readiness, sharpness_along

_SAMPLES, _PARTS = 16, 4


def measured_one_step(given: BatchInHand, name: str) -> dict[str, float]:
    """Return `{name}/readiness` and `{name}/critical_sharpness` of the loss on 16 samples; log once why one is missing.

    Readiness uses the gradients on 4 micro-batches of them, the sharpness the loss on all; with several ranks, means
    over ranks. The module runs as for λ_max, but on copies of its parameters, as the line search changes them.
    """
    trainer, module = given.trainer, given.module
    with_loss = WithLoss(module, training_loss)
    parameters = {
        key: widened(p.detach().clone()).requires_grad_() for key, p in with_loss.named_parameters() if p.requires_grad
    }
    frozen = {key: widened(p.detach()) for key, p in with_loss.named_parameters() if not p.requires_grad}
    leaves = list(parameters.values())
    parts = micro_batches(given.batch)
    whole = parts[0] if len(parts) == 1 else samples(given.batch, slice(0, _PARTS * (num_samples(parts[0]) or 0)))

    def loss(part: Any) -> Tensor:
        buffers = {key: widened(buffer.clone()) for key, buffer in with_loss.named_buffers()}  # a pass may write them
        with without_side_effects(module):
            value: Tensor = functional_call(
                with_loss, parameters | frozen | buffers, (tree_map(widened, copied(part)),)
            )
            return value

    def tell(key: str, reason: object) -> None:
        tell_once(trainer, f"{name}/{key} is not logged: {reason}.", key=f"{name}/{key}")

    mean = partial(trainer.strategy.reduce, reduce_op="mean") if trainer.world_size > 1 else alone
    found: dict[str, float] = {}
    with in_full_precision(module, next(module.parameters())):
        failure: Exception | None = None
        gradients: list[list[Tensor]] = []
        of_whole: list[Tensor] = []
        try:
            if not leaves:
                raise ValueError("the module has no trainable parameters")
            with torch.enable_grad():
                gradients = [gradients_of(loss(part), leaves) for part in parts]
                of_whole = gradients_of(loss(whole), leaves)
        except Exception as error:  # a measurement must not end training
            failure = error
        if not on_all_ranks(trainer, failure is None):
            tell("readiness", failure or "another rank failed")
            tell("critical_sharpness", failure or "another rank failed")
            return {}
        if on_all_ranks(trainer, len(parts) == _PARTS):
            found[f"{name}/readiness"] = readiness(gradients, mean, trainer.world_size)
        else:
            tell("readiness", f"the batch cannot be divided into {_PARTS} micro-batches of equal size")
        try:
            of_all = sharpness_along(list(map(mean, of_whole)), leaves, lambda: loss(whole), mean)
            found[f"{name}/critical_sharpness"] = of_all.value
        except ValueError as error:
            tell("critical_sharpness", error)
    return found


def micro_batches(batch: Any) -> list[Any]:
    """Divide the first 16 samples of a batch into 4 micro-batches of equal size; the whole batch if it cannot be.

    Example:
        >>> [[len(part) for part in micro_batches(torch.zeros(size, 2))] for size in (20, 3)]
        [[4, 4, 4, 4], [3]]
    """
    size = min(num_samples(batch) or 0, _SAMPLES) // _PARTS
    if not size:
        return [first_samples(batch, _SAMPLES)]
    return [samples(batch, slice(start, start + size)) for start in range(0, size * _PARTS, size)]
