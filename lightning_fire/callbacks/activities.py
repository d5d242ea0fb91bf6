"""How active hidden units are on batches of the training data."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from lightning_fire.callbacks.probe import Forward, forward_on_new_data
from lightning_fire.where import UnitLayer


@torch.no_grad()
def mean_activities(
    trainer: Trainer,
    pl_module: LightningModule,
    layers: Sequence[UnitLayer],
    num_batches: int,
    forward: Forward | None = None,
) -> Tensor:
    """Return, for each layer of units, the mean of |h| over samples and places of this rank.

    Args:
        trainer: The Trainer, its data loaded.
        pl_module: Its module, in the modes in which it shall run.
        layers: Layers of its hidden units.
        num_batches: Batches to look at, at most an epoch of them.
        forward: Runs the module on a batch. Default: its `loss_on`, otherwise `training_step`.

    Returns:
        Shape `(units of all layers,)`, float32; NaN for a layer that has not run.
    """
    sums = [torch.zeros(layer.size, device=pl_module.device) for layer in layers]
    counts = [0] * len(layers)

    def watch(index: int, layer: UnitLayer) -> Callable[..., None]:
        def hook(module: torch.nn.Module, args: tuple[Any, ...]) -> None:
            if not layer.counts_now():
                return
            activity = layer.activity(args[0].detach())
            sums[index] += activity.abs().sum(0, dtype=torch.float32)
            counts[index] += len(activity)

        return hook

    handles = [layer.observed.register_forward_pre_hook(watch(index, layer)) for index, layer in enumerate(layers)]
    try:
        forward_on_new_data(trainer, pl_module, num_batches, forward)
    finally:
        for handle in handles:
            handle.remove()
    return torch.cat([total / count if count else total * math.nan for total, count in zip(sums, counts, strict=True)])
