"""Reads the `Clock` of a Trainer, over several fits and across resumes."""

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from lightning.pytorch import Trainer

from lightning_fire._lightning import (
    batches_with_steps,
    begin_next_epoch,
    complete_last_batch,
    data_source,
    end_finished_epoch,
    epochs_of_training,
    load_states_of_loaders,
    logged_after_last_batch,
    undeclared,
)
from lightning_fire._private import tree_leaves
from lightning_fire.contracts import HasChunkAt, chunk_of, implements
from lightning_fire.when import Clock, Horizon, Reading


class TrainerClock:
    """Counts steps and changes of the data, and keeps the logged metrics that a schedule waits for.

    Data is new when the integer `chunk` of the DataModule changes, when `fit` gets another DataModule or loader than
    the last time, or after a call of `announce`. The first data of a training is never new.
    """

    def __init__(self, watched: Sequence[str] = ()):
        self.readings: dict[str, Reading] = {}
        self._watched = tuple(watched)
        self._trainer: Any = None  # weak reference
        self.last_event: int | None = None  # number of steps at the last event of this training
        self.step = 0  # number of batches that made an optimizer step
        self._global_step = 0  # step of the Trainer at `step`
        self._epoch: int | None = None  # last epoch of this training whose start was read
        self._last_read: tuple[int, int] | None = None  # epoch and global_step at the last reading
        self._changes = 0  # of the data
        self._chunk: int | None = None  # `chunk` of the DataModule when the data was last compared
        self._announced = False
        self._source: list[Callable[[], Any]] | None = None  # weak references to the data last compared
        self.fitting = False  # whether batches have been or will be trained in the current fit
        self.resumed = False  # whether the current fit has loaded a checkpoint
        self._restored = False  # whether it had the state of this
        self._horizon = Horizon()  # of the current fit
        self.follows_finished = False  # whether this fit continues after the end of the fit that wrote its checkpoint

    @property
    def has_seen_data(self) -> bool:
        """True once an epoch has started, in this fit or an earlier one."""
        return self._chunk is not None

    def prepare(self) -> None:
        """Prepare for a fit, before its checkpoint and its data are loaded."""
        self._epoch = self._last_read = None
        self.fitting = self.resumed = self._restored = self.follows_finished = False

    def return_to_epoch_end(self, checkpoint: dict[str, Any]) -> None:
        """Let Lightning finish an epoch after its last batch, if a schedule waits for metrics logged at its end."""
        if self._watched:
            complete_last_batch(checkpoint)

    def start(self, trainer: Trainer) -> None:
        """Start counting."""
        load_states_of_loaders(trainer)
        begin_next_epoch(trainer)
        end_finished_epoch(trainer)
        if self._restored:
            # the checkpoint may have been written between a step and its count
            self.step += self._global_step != trainer.global_step
            # written during validation: the last batch had not been counted
            epochs = undeclared(trainer.fit_loop.epoch_progress.current)
            done = max(epochs.completed, epochs.started if trainer.is_last_batch else 0)
            ends = (self._horizon, horizon_of(trainer))
            then, now = ((end.progress(done, trainer.global_step) or 0) >= 1 for end in ends)
            self.follows_finished = then and not now
        elif self._global_step != trainer.global_step:  # not the Trainer of the last fit
            self.step, self.last_event = batches_with_steps(trainer), None
        self._global_step, self._horizon = trainer.global_step, horizon_of(trainer)
        self._trainer = weakref.ref(trainer)
        self.fitting = True

    def note_event(self, clock: Clock) -> None:
        """Record an event of the method."""
        self.readings = {
            key: Reading(value, value, value, events + 1) for key, (value, _, _, events) in self.readings.items()
        }
        self.last_event = clock.step

    def tick(self, trainer: Trainer) -> bool:
        """Count the batch that has just ended if it made an optimizer step; return whether it did.

        Unlike `Trainer.global_step`, this counts one step for several optimizers of manual optimization. Until
        Lightning has counted one, each batch of manual optimization counts: a module may step optimizers without it.
        """
        before, self._global_step = self._global_step, trainer.global_step
        manual = not trainer.lightning_module.automatic_optimization
        if manual and before == 0 < self._global_step:
            self.step = 0  # the batches before made no step
        stepped = self._global_step != before or (manual and self._global_step == 0)
        self.step += stepped
        return stepped

    def announce(self, trainer: Trainer) -> None:
        """Count the data as new at the start of the next epoch.

        A resumed fit may announce the data of its epoch again; that is ignored if the start of the epoch was read
        before.
        """
        again = not self.fitting and self._epoch == trainer.current_epoch
        self._announced |= not again

    def take_data_of(self, states: Mapping[str, Any]) -> None:
        """Take the progress and the data from the state of another callback in a checkpoint; events are its own.

        Args:
            states: States of callbacks by key, which are loaded after this call.
        """
        for state in states.values():
            time = state.get("time") if isinstance(state, Mapping) else None
            if isinstance(time, Mapping) and time.keys() >= self.state_dict().keys() and time["number"] is not None:
                return self.load_state_dict({**time, "last_event": None, "readings": {}})

    def follow_older_data(self) -> None:
        """Count the first data of the next fit as new: the module has been trained before, elsewhere."""
        self._chunk, self._announced = 0, True

    def read(self, trainer: Trainer) -> Clock:
        """Read the clock before a batch; compare the data only at the first batch of an epoch.

        A resumed epoch does not count as a start.
        """
        epoch, step = trainer.current_epoch, trainer.global_step
        epoch_start = self._epoch != epoch
        if self._epoch is None:
            epoch_start = undeclared(trainer.fit_loop.epoch_loop.batch_progress.current).started == 0
        if not epoch_start and not self.has_seen_data:
            self._catch_up(trainer, epoch + 1)  # resumed in the middle of an epoch
        endless = trainer.num_training_batches == math.inf  # such a stream may change within its only epoch
        new_data = self._is_new_data(trainer) if epoch_start or endless else False
        if epoch_start:
            self._epoch, self._horizon = epoch, horizon_of(trainer)
            if self._watched:  # every rank uses the metrics of rank 0
                logged = {key: float(value) for key, value in trainer.callback_metrics.items() if key in self._watched}
                self.readings = self._updated_readings(trainer.strategy.broadcast(logged))
        before, self._last_read = self._last_read or (epoch - 1, step - 1), (epoch, step)
        return Clock(
            epoch=epoch,
            step=self.step,
            epoch_start=epoch_start,
            chunk=self._changes,
            new_data=new_data,
            progress=self._horizon.progress(*self._last_read),
            progress_before=self._horizon.progress(*before),
            metrics=dict(self.readings) if epoch_start else {},
        )

    def _updated_readings(self, values: Mapping[str, Any]) -> dict[str, Reading]:
        """Return the readings updated with newly logged values; NaN is ignored."""
        readings = dict(self.readings)
        for key in self._watched:
            value = float(values.get(key, math.nan))
            if not math.isnan(value):
                _, lowest, highest, events = readings.get(key, Reading(value, value, value))
                readings[key] = Reading(value, min(lowest, value), max(highest, value), events)
        return readings

    def _is_new_data(self, trainer: Trainer) -> bool:
        """Count a change of the data, and return whether this is the first epoch on it."""
        if not self.has_seen_data and trainer.current_epoch > 0:
            self._catch_up(trainer, trainer.current_epoch)
        first, changed = not self.has_seen_data, self.has_changed(trainer)
        if trainer.world_size > 1:
            changed = trainer.strategy.broadcast(changed)  # all ranks act together
        self._changes += changed
        source = data_source_of(trainer)
        self._source = [_weak_reference(part) for part in tree_leaves(source)]
        self._chunk, self._announced = chunk_of(source) or 0, False
        return changed or first

    def has_changed(self, trainer: Trainer) -> bool:
        """Return whether the data is known to differ from that of the last comparison."""
        if not self.has_seen_data:
            return self._announced and trainer.current_epoch > 0
        source = data_source_of(trainer)
        parts = tree_leaves(source)  # `fit(model, [loader])` twice is a new list of the same data
        same = self._source is None or (
            len(parts) == len(self._source)
            and all(reference() is part for reference, part in zip(self._source, parts, strict=True))
        )
        return (chunk_of(source) or 0) != self._chunk or not same or self._announced

    def _catch_up(self, trainer: Trainer, epochs: int) -> None:
        """Count earlier changes of the data after loading a checkpoint written without this callback."""
        source = data_source_of(trainer)
        if implements(source, HasChunkAt):
            chunks = [source.chunk_at(epoch) for epoch in range(epochs)]
            self._changes = sum(chunk != last for last, chunk in pairwise(chunks))
            self._chunk = chunks[-1]

    def copied(self) -> "TrainerClock":
        """Return a copy that includes the data, unlike `copy.copy` and pickles."""
        copied = object.__new__(type(self))
        vars(copied).update(vars(self))
        return copied

    def __getstate__(self) -> dict[str, Any]:
        """Exclude the data from copies and pickles: a copy treats the first data it gets as the current data."""
        return {**vars(self), "_source": None, "_trainer": None}

    def state_dict(self) -> dict[str, Any]:
        """State for a resumed run, as plain values; after the last batch it includes the logged metrics."""
        trainer = self._trainer() if self.fitting and self._watched and self._trainer else None  # a copy has none
        readings = self._updated_readings({} if trainer is None else logged_after_last_batch(trainer))
        return {
            "step": self.step,
            "global_step": self._global_step,
            "epoch": self._epoch,
            "moment": self._last_read,
            "changes": self._changes,
            "number": self._chunk,
            "announced": self._announced,
            "last_event": self.last_event,
            "horizon": [self._horizon.max_epochs, self._horizon.max_steps],
            "readings": {key: list(reading) for key, reading in readings.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step, self._global_step = state["step"], state["global_step"]
        self._epoch, self._last_read = state["epoch"], state["moment"]
        self._changes, self._chunk = state["changes"], state["number"]
        self._announced |= state["announced"]  # an announcement before this fit counts as well
        self._source = None  # of a fit in this process, not of the fit that wrote the checkpoint
        self.last_event = state["last_event"]
        self.readings = {key: Reading(*reading) for key, reading in state["readings"].items()}
        self._horizon = Horizon(*state.get("horizon", ()))  # of the fit that wrote the checkpoint
        self._restored = True


def data_source_of(trainer: Trainer) -> Any:
    """Source of the training data: the DataModule, the loaders passed to `fit`, or the LightningModule; first found."""
    data = undeclared(trainer).datamodule
    return data_source(trainer) if data is None else data


def horizon_of(trainer: Trainer) -> Horizon:
    """Return the end of a Trainer's training."""
    ends = (epochs_of_training(trainer), trainer.max_steps)
    return Horizon(*(end if end is not None and end >= 0 else None for end in ends))


def _weak_reference(part: Any) -> Callable[[], Any]:
    """Return a weak reference to an object if its type allows one, otherwise a strong one."""
    try:
        return weakref.ref(part)
    except TypeError:
        return lambda: part
