"""Reads the `Clock` of a Lightning Trainer, and tells when its data is new."""

import weakref
from typing import Any

from lightning.pytorch import Trainer

from lightning_fire.when import Clock, Horizon


class Timekeeper:
    """Counts optimizer steps and chunks of data over one or several fits, and across resumes.

    Data is new when the DataModule's `chunk` attribute (int) changes, when `fit` is called with another DataModule or
    loader than the last time, or when `announce` was called. The clock's chunk number goes on counting over several
    DataModules.
    """

    def __init__(self):
        self.last_event: int | None = None  # optimizer steps done at the last event of this fit
        self._step = 0
        self._global_step = 0
        self._epoch: int | None = None  # the last whose start was seen
        self._chunk: int | None = None
        self._offset = 0  # chunks that came from earlier DataModules, or were announced
        self._announced = False
        self._source: Any = None  # returns the DataModule or loader of the last fit
        self._restored = False

    def start(self, trainer: Trainer) -> None:
        """Begin a fit.

        Args:
            trainer: The Trainer whose `fit` has just begun, its state restored.
        """
        if not (self._restored and self._global_step == trainer.global_step):
            self._step = trainer.global_step
            self._epoch = self.last_event = None
        self._global_step = trainer.global_step
        self._restored = False

    def tick(self, trainer: Trainer) -> None:
        """Notice whether the batch that has just ended made an optimizer step.

        `Trainer.global_step` counts each optimizer of manual optimization on its own; this count does not.

        Args:
            trainer: The Trainer at the end of a batch.
        """
        if trainer.global_step != self._global_step:
            self._step += 1
            self._global_step = trainer.global_step

    def announce(self) -> None:
        """Make the next epoch start count as one with new data."""
        self._announced = True

    def read(self, trainer: Trainer, epoch_start: bool) -> Clock:
        """Read the clock.

        The first batch of an epoch counts as its start where Lightning has not announced that: it does not after a
        resume from a checkpoint that was written at the last batch of an epoch.

        Args:
            trainer: The Trainer at the start of an epoch or of a batch.
            epoch_start: Whether it is the start of an epoch; only then the data is looked at.

        Returns:
            The present moment.
        """
        epoch_start = epoch_start or self._epoch not in (None, trainer.current_epoch)
        if epoch_start:
            self._epoch = trainer.current_epoch
        new_data = self._look_at_data(trainer) if epoch_start else False
        horizon = horizon_of(trainer)
        return Clock(
            epoch=trainer.current_epoch,
            step=self._step,
            epoch_start=epoch_start,
            chunk=self._chunk or 0,
            new_data=new_data,
            max_epochs=horizon.max_epochs,
            max_steps=horizon.max_steps,
        )

    def _look_at_data(self, trainer: Trainer) -> bool:
        """Bring the number of the chunk up to date; return whether it has changed."""
        source = data_source_of(trainer)
        own_number = _chunk_of(source)
        if self._source is not None and self._source() is not source:
            self._offset = (self._chunk or 0) + 1 - own_number
        if self._announced:
            self._offset += 1
        if self._chunk is None and trainer.current_epoch > 0 and hasattr(source, "chunk_at"):
            self._chunk = source.chunk_at(trainer.current_epoch - 1)  # resumed from a checkpoint without this callback
        number = self._offset + own_number
        changed = number != self._chunk
        self._source, self._chunk, self._announced = _reference(source), number, False
        return changed

    def __getstate__(self) -> dict[str, Any]:
        """Leave the data source out of copies and pickles: a copy takes the first data it sees for the present one."""
        return {**vars(self), "_source": None}

    def state_dict(self) -> dict[str, Any]:
        """Return all that a resumed run must know, as plain values."""
        return {
            "step": self._step,
            "global_step": self._global_step,
            "epoch": self._epoch,
            "chunk": self._chunk,
            "offset": self._offset,
            "last_event": self.last_event,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned.

        Args:
            state: The value of `state_dict()` of the interrupted run.
        """
        self._step, self._global_step = state["step"], state["global_step"]
        self._epoch = state["epoch"]
        self._chunk, self._offset = state["chunk"], state["offset"]
        self.last_event = state["last_event"]
        self._restored = True


def data_source_of(trainer: Trainer) -> Any:
    """Return where the training data of this fit comes from.

    Args:
        trainer: The Trainer during a fit.

    Returns:
        The DataModule, or else the loader given to `fit`, or else the LightningModule that makes its own loader.
    """
    if trainer.datamodule is not None:
        return trainer.datamodule
    return trainer.fit_loop._data_source.instance


def horizon_of(trainer: Trainer) -> Horizon:
    """Return how far the training of this Trainer will go.

    Args:
        trainer: The Trainer, with its DataModule attached where it has one.
    """
    bounded_epochs = trainer.max_epochs is not None and trainer.max_epochs >= 0
    bounded_steps = trainer.max_steps is not None and trainer.max_steps >= 0
    return Horizon(
        max_epochs=trainer.max_epochs if bounded_epochs else None,
        max_steps=trainer.max_steps if bounded_steps else None,
        num_chunks=getattr(trainer.datamodule, "num_chunks", None),
    )


def _chunk_of(source: Any) -> int:
    number = getattr(source, "chunk", None)
    return number if isinstance(number, int) else 0


def _reference(source: Any) -> Any:
    """Return a callable that gives back `source` without keeping it alive, where its type allows that."""
    try:
        return weakref.ref(source)
    except TypeError:
        return lambda: source
