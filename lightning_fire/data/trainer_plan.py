"""How a Trainer goes through the chunks: whether it will at all, and in how many optimizer steps."""

from collections.abc import Sequence
from math import ceil

from lightning.pytorch import Trainer
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from lightning_fire._lightning import add_batch_that_stepped
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
        >>> from lightning_fire.data.chunks import WarmStart
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


def start_epoch_afresh(trainer: Trainer) -> None:
    """Let a resumed Trainer begin its first epoch with the first batch, where none of it has been trained on.

    Of a checkpoint written right after the last batch of an epoch, Lightning (2.5.1 to 2.6.6 at least) knows that the
    epoch is over by comparing the batches done with those of the *next* epoch. If a new chunk makes that one longer, it
    takes them for batches of the next epoch, and would end that early. Nor does it count the next epoch as begun: after
    a second interruption, in the midst of that one, it would begin it once more, and train some batches twice.

    Of one written because something failed at the start of an epoch, it takes the batches of the epoch before for
    batches of this one as well, and would end it as much early.

    Args:
        trainer: The Trainer, asking for its training data.
    """
    loop, batch_loop = trainer.fit_loop, trainer.fit_loop.epoch_loop
    progress, epochs = batch_loop.batch_progress, loop.epoch_progress.total
    if loop.restarted_mid_epoch and batch_loop.restarted_on_train_batch_end and progress.is_last_batch:
        progress.increment_completed()  # what Lightning does after it has saved
        add_batch_that_stepped(trainer)
        batch_loop.restarting = False
        batch_loop.reset_restart_stage()
        loop.reset_restart_stage()
    if loop.restarting and epochs.started == epochs.ready - 1:  # a callback failed at the start of an epoch
        progress.reset_on_run()
        progress.is_last_batch = False
