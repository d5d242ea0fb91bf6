"""Notify the callbacks of a Trainer that its data has changed."""

from lightning.pytorch import Trainer

from lightning_fire._lightning import undeclared
from lightning_fire.callbacks.clock import TrainerClock


def announce_new_data(trainer: Trainer) -> None:
    """Notify each callback of this Trainer that the data has changed, from the next epoch on.

    Not needed with a DataModule that has a `chunk` attribute. Call it from `train_dataloader()`, or anywhere before
    that epoch, for example before `fit(ckpt_path=…)`. If a resumed run calls it again in `train_dataloader()` for the
    epoch in which it was interrupted, it counts once. Before the very first epoch it has no effect, as there is no
    older data.

    Args:
        trainer: The Trainer whose callbacks are notified.

    Raises:
        TypeError: If `trainer` is not a Trainer.
    """
    if not hasattr(trainer, "callbacks"):
        raise TypeError(f"`trainer` must be a Trainer, got {type(trainer).__name__}")
    for callback in undeclared(trainer).callbacks:
        if isinstance(clock := getattr(callback, "clock", None), TrainerClock):
            clock.announce(trainer)
