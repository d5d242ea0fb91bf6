"""Number of optimizer steps of a Trainer in each chunk."""

from collections.abc import Sequence
from math import ceil

from lightning.pytorch import Trainer

from lightning_fire.data.epoch_plan import EpochPlan
from lightning_fire.data.resumable_loader import num_batches, world_size


def steps_per_chunk(plan: EpochPlan, sizes: Sequence[int], batch_size: int, trainer: Trainer | None) -> list[int]:
    """Return the optimizer steps of each chunk of `sizes` samples, over all its epochs.

    Example:
        >>> from lightning_fire.data.protocols import WarmStart
        >>> steps_per_chunk(WarmStart(epochs=(20, 2)), sizes=[100, 1000], batch_size=256, trainer=None)
        [20, 8]
    """
    limit = 1.0 if trainer is None else trainer.limit_train_batches
    window = 1 if trainer is None else trainer.accumulate_grad_batches
    steps = []
    for size, epochs in zip(sizes, plan.epochs_per_chunk, strict=True):
        batches = num_batches(size, batch_size, world_size())
        batches = min(batches, limit) if isinstance(limit, int) else int(batches * limit)
        steps.append(epochs * ceil(batches / window))  # the end of an epoch closes a window early
    return steps
