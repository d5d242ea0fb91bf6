"""Reads the `Clock` of a Lightning Trainer, and tells when its data is new."""

import math
import weakref
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from lightning.pytorch import Trainer

from lightning_fire._lightning import (
    batches_that_stepped,
    begin_next_epoch,
    data_source,
    end_finished_epoch,
    metrics_of_epoch,
)
from lightning_fire.contracts import HasChunkAt, chunk_of, offers
from lightning_fire.when import Clock, Horizon, Reading


class Timekeeper:
    """Counts steps and changes of the data over one or several fits, and across resumes.

    Data is new when the DataModule's whole number `chunk` changes, when `fit` is called with another DataModule or
    loader than the last time, or when `announce` was called. What training begins with is never new, whatever its
    number.

    Args:
        watched: Keys of logged measures to read.
    """

    def __init__(self, watched: Sequence[str] = ()):
        self.readings: dict[str, Reading] = {}
        self._watched = tuple(watched)
        self._trainer: Any = None  # weak reference
        self.last_event: int | None = None  # steps done at the last event of this training
        self._step = 0
        self._global_step = 0  # that `_step` belongs to
        self._epoch: int | None = None  # the last of this training whose start was seen
        self._moment: tuple[int, int] | None = None  # epoch and global_step at the last reading
        self._changes = 0  # of the data
        self._number: int | None = None  # the DataModule's own number of the chunk at the last look
        self._announced = False
        self._source: Any = None  # tells whether the data comes from where it came from at the last look
        self._fitting = False
        self._restored = False
        self._horizon = Horizon()  # of the present fit
        self.follows_finished = False  # whether this fit goes beyond the end of that which wrote its checkpoint

    @property
    def has_seen_data(self) -> bool:
        """Whether an epoch has begun, in this fit or in one before."""
        return self._number is not None

    @property
    def step(self) -> int:
        """Batches so far that made an optimizer step."""
        return self._step

    def prepare(self) -> None:
        """Begin a fit, before its checkpoint is restored and its data is loaded."""
        self._epoch = self._moment = None
        self._fitting = self._restored = self.follows_finished = False

    def return_to_epoch_end(self, checkpoint: dict[str, Any]) -> None:
        """Let Lightning finish an epoch whose last batch a checkpoint was written at, if a schedule waits for metrics.

        Lightning (2.5.1 to 2.6.6 at least) goes on with the next epoch: it leaves out validation and
        `on_train_epoch_end`, which may log those measures. So take that batch for completed, and validation for begun.

        Args:
            checkpoint: The checkpoint, before Lightning restores its loops from it.
        """
        loops = checkpoint.get("loops", {}).get("fit_loop", {})
        batches, validation = (loops.get(f"epoch_loop.{part}batch_progress") for part in ("", "val_loop."))
        if not self._watched or not batches or not batches["is_last_batch"]:
            return
        if batches["total"]["completed"] == batches["total"]["processed"] - 1:
            for progress in (batches["total"], batches["current"]):
                progress["completed"] += 1
            for progress, begun in ((validation["total"], 1), (validation["current"], 0)):
                progress.update(ready=begun, started=begun, processed=0, completed=0)

    def start(self, trainer: Trainer) -> None:
        """Begin to count.

        Args:
            trainer: The Trainer whose first batch is ahead, its state restored.
        """
        begin_next_epoch(trainer)
        done = trainer.fit_loop.epoch_loop.batch_progress.total
        if trainer.fit_loop.restarted_mid_epoch and trainer.is_last_batch and done.completed == done.processed:
            end_finished_epoch(trainer)
        if self._restored:
            self.tick(trainer)  # the checkpoint may have been written between a step and its count
            epochs = trainer.fit_loop.epoch_progress.current  # written in validation, the last one has not completed
            done = max(epochs.completed, epochs.started if trainer.is_last_batch else 0)
            ends = (self._horizon, horizon_of(trainer))
            then, now = ((end.progress(done, trainer.global_step) or 0) >= 1 for end in ends)
            self.follows_finished = then and not now
        elif self._global_step != trainer.global_step:  # not the Trainer of the last fit
            self._step, self.last_event = _batches_with_steps(trainer), None
        self._global_step, self._horizon = trainer.global_step, horizon_of(trainer)
        self._trainer = weakref.ref(trainer)
        self._fitting = True

    def snapshot(self) -> dict[str, Any]:
        """Return all that it knows, for `restore`."""
        return dict(vars(self))

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Forget what has been since a snapshot.

        Args:
            snapshot: What `snapshot()` returned.
        """
        vars(self).update(snapshot)

    def note_event(self, clock: Clock) -> None:
        """Remember that the method acts.

        Args:
            clock: The moment.
        """
        self.last_event = clock.step
        self.readings = {
            key: Reading(reading.value, reading.value, reading.value, reading.events + 1)
            for key, reading in self.readings.items()
        }

    def tick(self, trainer: Trainer) -> bool:
        """Notice, and tell, whether the batch that has just ended made an optimizer step.

        `Trainer.global_step` counts each optimizer of manual optimization on its own; this count does not.

        Args:
            trainer: The Trainer at the end of a batch.
        """
        stepped = trainer.global_step != self._global_step
        self._step += stepped
        self._global_step = trainer.global_step
        return stepped

    def announce(self, trainer: Trainer) -> None:
        """Make the next epoch start count as one with new data.

        A resumed fit asks for the data of its epoch once more, and may announce it once more: where the start of that
        epoch was seen before the checkpoint, this says nothing new.

        Args:
            trainer: The Trainer.
        """
        again = not self._fitting and self._epoch == trainer.current_epoch
        self._announced |= not again

    def read(self, trainer: Trainer, epoch_start: bool) -> Clock:
        """Read the clock.

        The first batch of an epoch counts as its start where Lightning has not announced that: it does not after a
        resume from a checkpoint that was written at the last batch of an epoch. After a second resume, from the midst
        of that epoch, Lightning begins it once more, batches and all: that is no start of an epoch here.

        Args:
            trainer: The Trainer at the start of an epoch or of a batch.
            epoch_start: Whether it is the start of an epoch; only then the data is looked at.

        Returns:
            The present moment.
        """
        epoch, horizon = trainer.current_epoch, horizon_of(trainer)
        epoch_start = epoch_start if self._epoch is None else self._epoch != epoch
        if not epoch_start and self._number is None:
            self._catch_up(trainer, epoch + 1)  # resumed in the middle of an epoch
        new_data = self._look_at_data(trainer) if epoch_start else False
        if epoch_start:
            self._epoch = epoch
            if self._watched:  # every rank goes by the measures of rank 0
                logged = {key: float(value) for key, value in trainer.callback_metrics.items() if key in self._watched}
                self.readings = self._updated_readings(trainer.strategy.broadcast(logged))
        before, self._moment = self._moment or (epoch - 1, trainer.global_step - 1), (epoch, trainer.global_step)
        return Clock(
            epoch=epoch,
            step=self._step,
            epoch_start=epoch_start,
            chunk=self._changes,
            new_data=new_data,
            progress=horizon.progress(*self._moment),
            progress_before=horizon.progress(*before),
            metrics=dict(self.readings) if epoch_start else {},
        )

    def _updated_readings(self, values: Mapping[str, Any]) -> dict[str, Reading]:
        """Return the readings with what has been logged since; NaN says nothing."""
        readings = dict(self.readings)
        for key in self._watched:
            value = float(values.get(key, math.nan))
            if not math.isnan(value):
                _, lowest, highest, events = readings.get(key, Reading(value, value, value))
                readings[key] = Reading(value, min(lowest, value), max(highest, value), events)
        return readings

    def _look_at_data(self, trainer: Trainer) -> bool:
        """Bring the count of changes up to date; return whether this is the first epoch on the present data."""
        if self._number is None and trainer.current_epoch > 0:
            self._catch_up(trainer, trainer.current_epoch)
        first, changed = not self.has_seen_data, self.has_changed(trainer)
        self._changes += changed
        source = data_source_of(trainer)
        self._source, self._number, self._announced = _references(source), chunk_of(source) or 0, False
        return changed or first

    def has_changed(self, trainer: Trainer) -> bool:
        """Return whether the data is other than it was at the last look, as far as is known.

        Args:
            trainer: The Trainer during a fit.
        """
        if not self.has_seen_data:
            return self._announced and trainer.current_epoch > 0
        source = data_source_of(trainer)
        elsewhere = self._source is not None and not _is_same(self._source, source)
        return (chunk_of(source) or 0) != self._number or elsewhere or self._announced

    def _catch_up(self, trainer: Trainer, epochs: int) -> None:
        """Learn what the data was in the first epochs, of which a checkpoint without this callback tells nothing."""
        source = data_source_of(trainer)
        if offers(source, HasChunkAt):
            chunks = [source.chunk_at(epoch) for epoch in range(epochs)]
            self._changes = sum(chunk != last for last, chunk in pairwise(chunks))
            self._number = chunks[-1]

    def __getstate__(self) -> dict[str, Any]:
        """Leave the data source out of copies and pickles: a copy takes the first data it sees for the present one."""
        return {**vars(self), "_source": None, "_trainer": None}

    def state_dict(self) -> dict[str, Any]:
        """Return all that a resumed run must know, as plain values; after the last batch, also what has been logged."""
        trainer = self._trainer() if self._fitting and self._watched else None
        readings = self._updated_readings({} if trainer is None else _logged_after_last_batch(trainer))
        return {
            "step": self._step,
            "global_step": self._global_step,
            "epoch": self._epoch,
            "moment": self._moment,
            "changes": self._changes,
            "number": self._number,
            "announced": self._announced,
            "last_event": self.last_event,
            "horizon": [self._horizon.max_epochs, self._horizon.max_steps],
            "readings": {key: list(reading) for key, reading in readings.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned.

        Args:
            state: The value of `state_dict()` of the interrupted run.
        """
        self._step, self._global_step = state["step"], state["global_step"]
        self._epoch, self._moment = state["epoch"], state["moment"]
        self._changes, self._number = state["changes"], state["number"]
        self._announced |= state["announced"]  # one of before this fit counts as well
        self._source = None  # of a fit in this process, not of the one that wrote the checkpoint
        self.last_event = state["last_event"]
        self.readings = {key: Reading(*reading) for key, reading in state["readings"].items()}
        self._horizon = Horizon(*state.get("horizon", ()))  # of the fit that wrote the checkpoint
        self._restored = True


def _logged_after_last_batch(trainer: Trainer) -> dict[str, Any]:
    """Return the measures logged so far, also those of the epoch's batches; empty before its last batch is done."""
    progress = trainer.fit_loop.epoch_loop.batch_progress
    if not progress.is_last_batch or progress.current.processed != progress.current.ready:
        return {}
    return {**trainer.callback_metrics, **metrics_of_epoch(trainer)}


def data_source_of(trainer: Trainer) -> Any:
    """Return where the training data of this fit comes from.

    Args:
        trainer: The Trainer during a fit.

    Returns:
        The DataModule, or else the loader or collection of loaders given to `fit`, or else the LightningModule that
        makes its own loader.
    """
    if trainer.datamodule is not None:
        return trainer.datamodule
    return data_source(trainer)


def horizon_of(trainer: Trainer) -> Horizon:
    """Return how far the training of this Trainer will go.

    Args:
        trainer: The Trainer.
    """
    bounded_epochs = trainer.max_epochs is not None and trainer.max_epochs >= 0
    bounded_steps = trainer.max_steps is not None and trainer.max_steps >= 0
    return Horizon(
        max_epochs=trainer.max_epochs if bounded_epochs else None,
        max_steps=trainer.max_steps if bounded_steps else None,
    )


def _batches_with_steps(trainer: Trainer) -> int:
    """Return how many batches have made an optimizer step; of a resumed Trainer, Lightning's count may lag by one."""
    batches = batches_that_stepped(trainer)
    return trainer.global_step if trainer.global_step == batches + 1 else batches


def _parts(source: Any) -> list[Any]:
    """Take a collection of loaders apart: `fit(model, [loader])` twice is a new list, and the same data."""
    if isinstance(source, dict):
        source = list(source.values())
    if isinstance(source, list | tuple):
        return [part for item in source for part in _parts(item)]
    return [source]


def _references(source: Any) -> list[Any]:
    """Return callables that give back the parts of `source` without keeping them alive, where their types allow."""
    return [_reference(part) for part in _parts(source)]


def _reference(part: Any) -> Any:
    try:
        return weakref.ref(part)
    except TypeError:
        return lambda: part


def _is_same(references: list[Any], source: Any) -> bool:
    parts = _parts(source)
    return len(parts) == len(references) and all(
        reference() is part for reference, part in zip(references, parts, strict=True)
    )
