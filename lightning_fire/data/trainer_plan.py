"""How a Trainer goes through the chunks: whether it will at all, and in how many optimizer steps."""

from collections.abc import Sequence
from math import ceil

from lightning.pytorch import Trainer
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from lightning_fire.data.epoch_plan import EpochPlan
from lightning_fire.data.resumable_loader import num_batches, world_size


def steps_per_chunk(plan: EpochPlan, sizes: Sequence[int], batch_size: int, trainer: Trainer | None) -> list[int]:
    """Return the optimizer steps of each chunk, over all its epochs.

    Args:
        plan: How the data arrives.
        sizes: Training samples of each chunk.
        batch_size: Samples in a batch, per device.
        trainer: Whose `limit_train_batches` and `accumulate_grad_batches` count; None: neither limit nor accumulation.

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


def check_trainer(trainer: Trainer, plan: EpochPlan) -> None:
    """Check that the Trainer will go through the chunks as the plan says.

    Args:
        trainer: The Trainer, about to fit.
        plan: How the data arrives.

    Raises:
        MisconfigurationException: If it will not.
    """
    if plan.num_chunks > 1 and trainer.reload_dataloaders_every_n_epochs != 1:
        raise MisconfigurationException(
            f"With {plan.num_chunks} chunks the Trainer must ask for the training data in every epoch: set"
            " Trainer(reload_dataloaders_every_n_epochs=1), got"
            f" reload_dataloaders_every_n_epochs={trainer.reload_dataloaders_every_n_epochs}."
        )
    total = sum(plan.epochs_per_chunk)
    if trainer.max_epochs != total:
        raise MisconfigurationException(
            f"{plan} takes {total} epochs in all, but the Trainer has max_epochs={trainer.max_epochs}:"
            f" set Trainer(max_epochs={total}), or other `epochs` of the plan."
        )
    if trainer.overfit_batches:
        raise MisconfigurationException(
            "`overfit_batches` would replace the order in which the chunks' samples are drawn: use"
            f" `limit_train_batches` instead, got overfit_batches={trainer.overfit_batches}."
        )
