"""WHEN a method acts: a `Clock` says what time it is in training, a schedule says whether that is a time to act.

No torch and no Lightning in here. A clock is read at one of two kinds of moment: the start of an epoch (its data
loaded, no batch seen) and the start of a batch. A schedule is anything with `due(clock) -> bool` and a telling repr;
those below also answer `problem(horizon)`, so that a schedule that can never be due is refused before training starts.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Reading(NamedTuple):
    """A logged measure, as a schedule sees it.

    Attributes:
        value: The last value logged.
        lowest: The lowest since the last event, or since the beginning.
        highest: The highest likewise.
        events: How often the method has acted so far.
    """

    value: float
    lowest: float
    highest: float
    events: int = 0


@dataclass(frozen=True)
class Clock:
    """A moment of training.

    Attributes:
        epoch: Current epoch, counted from 0.
        step: Batches so far that made an optimizer step, over all epochs; with one optimizer, the optimizer steps.
        epoch_start: True at the start of an epoch, before its first batch.
        chunk: How often the data has changed so far: 0 on the data that training began with.
        new_data: True at the start of the first epoch on the present data.
        progress: Share of training done, in [0, 1]; None if it has no known end.
        progress_before: The same at the moment before this one.
        metrics: What is known at the start of an epoch of the logged measures that the schedule asks for, by key.
    """

    epoch: int
    step: int
    epoch_start: bool = True
    chunk: int = 0
    new_data: bool = False
    progress: float | None = None
    progress_before: float | None = None
    metrics: Mapping[str, Reading] = field(default_factory=dict)


@dataclass(frozen=True)
class Horizon:
    """How far training will go; None where unbounded.

    Attributes:
        max_epochs: Epochs in all.
        max_steps: Steps in all as the Trainer counts them: those of several optimizers one by one.
    """

    max_epochs: int | None = None
    max_steps: int | None = None

    def progress(self, epoch: int, steps: int) -> float | None:
        """Return the share of training that is done, by the bound that will be met first; None without a bound.

        Args:
            epoch: Whole epochs done.
            steps: Steps done, counted as `max_steps` is.
        """
        shares = [
            done / end for done, end in ((epoch, self.max_epochs), (steps, self.max_steps)) if end is not None and end
        ]
        return max(shares, default=None)


class Schedule(ABC):
    """A rule for when to act: the same answer for the same clock, whatever was asked before."""

    def __repr__(self) -> str:
        """Tell the settings: the repr is part of the key of a callback's state in checkpoints."""
        settings = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        return f"{type(self).__qualname__}({', '.join(f'{name}={value!r}' for name, value in settings.items())})"

    @abstractmethod
    def due(self, clock: Clock) -> bool:
        """Tell whether `clock` is a time to act.

        Args:
            clock: The present moment.
        """

    @property
    def watched(self) -> Sequence[str]:
        """Keys of the logged measures that this schedule goes by."""
        return ()

    def problem(self, horizon: Horizon) -> str | None:
        """Tell why this schedule can never be due within `horizon`, or None if it can.

        Args:
            horizon: How far training will go.
        """
        return None


def problem_of(schedule: Any, horizon: Horizon) -> str | None:
    """Tell why a schedule can never be due within `horizon`; None if it can, or does not say.

    Args:
        schedule: Anything with `due`.
        horizon: How far training will go.
    """
    problem = getattr(schedule, "problem", None)
    return problem(horizon) if callable(problem) else None


def watched_by(schedule: Any) -> Sequence[str]:
    """Return the keys of the logged measures that a schedule goes by.

    Args:
        schedule: Anything with `due`.
    """
    return getattr(schedule, "watched", ())


@dataclass(frozen=True)
class AtNewData(Schedule):
    """Whenever new data has arrived: at the start of every chunk but the first (paper: vision and language).

    Args:
        skip_first: Do not act on the data with which training begins. False: act on it, as where the weights are loaded
            from an earlier training; and where a fit goes on from the checkpoint of one that had reached its end,
            unless the `chunk` of the data is still the same.
    """

    skip_first: bool = True

    def due(self, clock: Clock) -> bool:
        """Tell whether a chunk begins."""
        return clock.epoch_start and clock.new_data and not (self.skip_first and clock.chunk == 0)


@dataclass(frozen=True)
class AtEpochs(Schedule):
    """At the start of given epochs.

    Args:
        epochs: Epochs, counted from 0; `[100]` acts after 100 whole epochs.

    Raises:
        ValueError: If `epochs` is empty or holds anything but whole numbers from 0.
    """

    epochs: Sequence[int]

    def __post_init__(self):
        if (
            isinstance(self.epochs, str)
            or not isinstance(self.epochs, Sequence)
            or not self.epochs
            or not all(isinstance(epoch, int) and epoch >= 0 for epoch in self.epochs)
        ):
            raise ValueError(f"`epochs` must be a list of one or more whole numbers from 0, got {self.epochs!r}")
        object.__setattr__(self, "epochs", tuple(self.epochs))

    def due(self, clock: Clock) -> bool:
        """Tell whether one of the epochs begins."""
        return clock.epoch_start and clock.epoch in self.epochs

    def problem(self, horizon: Horizon) -> str | None:
        """Tell whether training ends before the first of the epochs."""
        if horizon.max_epochs is not None and min(self.epochs) >= horizon.max_epochs:
            return f"training ends after epoch {horizon.max_epochs - 1} (max_epochs={horizon.max_epochs})"
        return None


@dataclass(frozen=True)
class EveryNEpochs(Schedule):
    """At the start of epochs n, 2n, 3n, …

    Args:
        n: Number of epochs between two events, at least 1.

    Raises:
        ValueError: If `n` is below 1.
    """

    n: int

    def __post_init__(self):
        _require_positive(self.n)

    def due(self, clock: Clock) -> bool:
        """Tell whether an epoch begins whose number is a multiple of n."""
        return clock.epoch_start and clock.epoch > 0 and clock.epoch % self.n == 0

    def problem(self, horizon: Horizon) -> str | None:
        """Tell whether training ends before epoch n."""
        return AtEpochs((self.n,)).problem(horizon)


@dataclass(frozen=True)
class EveryNSteps(Schedule):
    """After every n steps, before the next batch.

    Where a batch steps several optimizers (manual optimization), that is one step, as on the axis of the logs.

    Args:
        n: Number of steps between two events, at least 1.

    Raises:
        ValueError: If `n` is below 1.
    """

    n: int

    def __post_init__(self):
        _require_positive(self.n)

    def due(self, clock: Clock) -> bool:
        """Tell whether the number of steps done is a multiple of n."""
        return clock.step > 0 and clock.step % self.n == 0

    def problem(self, horizon: Horizon) -> str | None:
        """Tell whether training ends with step n or before; several optimizers may end it sooner."""
        if horizon.max_steps is not None and self.n >= horizon.max_steps:
            return f"training ends after {horizon.max_steps} steps (max_steps={horizon.max_steps})"
        return None


@dataclass(frozen=True)
class AtFraction(Schedule):
    """Once, as soon as a fraction of training is done (the paper's reinforcement learning setting: 0.5).

    Measured in `max_epochs` at the start of epochs, and in `max_steps` at every batch; if training is bounded by both,
    whichever is ahead. A resume with other bounds is measured by those.

    Args:
        fraction: Share of training, strictly between 0 and 1.

    Raises:
        ValueError: If `fraction` is not strictly between 0 and 1.
    """

    fraction: float

    def __post_init__(self):
        if not 0 < self.fraction < 1:
            raise ValueError(f"`fraction` must be strictly between 0 and 1, got {self.fraction!r}")

    def due(self, clock: Clock) -> bool:
        """Tell whether the share of training is reached, and was not at the moment before."""
        if clock.progress is None or clock.progress_before is None:
            return False
        return clock.progress_before < self.fraction <= clock.progress

    def problem(self, horizon: Horizon) -> str | None:
        """Tell whether training has no known end, or ends with the epoch or step that reaches the fraction."""
        ends = {"epochs": horizon.max_epochs, "steps": horizon.max_steps}
        ends = {unit: end for unit, end in ends.items() if end is not None}
        if not ends:
            return "training has neither max_epochs nor max_steps"
        if all((end - 1) / end < self.fraction for end in ends.values() if end):
            return "training has only " + " and ".join(f"{end} {unit}" for unit, end in ends.items())
        return None


@dataclass(frozen=True)
class WhenMetric(Schedule):
    """At the start of an epoch, when a logged measure has passed a threshold.

    The measure is anything that the module or a callback logs at the end of epochs, such as
    `plasticity/dormant_fraction` by `PlasticityMonitor`. After an event it must first come back before it can be due
    again: an event that does not help is not repeated.

    Args:
        metric: Key of the measure, as in `trainer.callback_metrics`.
        above: Due when the measure is above this value.
        below: Due when it is below this value. One of the two must be given.
        rearm: After an event, due again only once the measure has been at or beyond this value on the other side.
            Default: the threshold itself. A value further away keeps a measure that trembles around the threshold from
            causing event after event.

    Raises:
        ValueError: If not one of `above` and `below` is given, a value is NaN or infinite, or `rearm` lies on the wrong
            side of the threshold.

    Example:
        >>> schedule = WhenMetric("plasticity/dormant_fraction", above=0.2, rearm=0.1)
        >>> schedule.due(Clock(epoch=3, step=30, metrics={schedule.metric: Reading(0.25, 0.0, 0.25)}))
        True
    """

    metric: str
    above: float | None = None
    below: float | None = None
    rearm: float | None = None

    def __post_init__(self):
        if (self.above is None) == (self.below is None):
            raise ValueError(f"one of `above` and `below` must be given, got above={self.above}, below={self.below}")
        for name in ("above", "below", "rearm"):
            if not math.isfinite(getattr(self, name) or 0):
                raise ValueError(f"`{name}` must be finite, got {getattr(self, name)}")
        if self.rearm is not None and (self.rearm > self.above if self.above is not None else self.rearm < self.below):
            side, threshold = ("below", self.above) if self.above is not None else ("above", self.below)
            raise ValueError(f"`rearm` must be at or {side} the threshold {threshold}, got {self.rearm}")

    @property
    def watched(self) -> Sequence[str]:
        """The key of the measure."""
        return (self.metric,)

    def due(self, clock: Clock) -> bool:
        """Tell whether the measure has passed the threshold, and was back before since the last event."""
        reading = clock.metrics.get(self.metric)
        if reading is None or not clock.epoch_start:
            return False
        if self.above is not None:
            back = self.above if self.rearm is None else self.rearm
            return reading.value > self.above and (reading.events == 0 or reading.lowest <= back)
        back = self.below if self.rearm is None else self.rearm
        return reading.value < self.below and (reading.events == 0 or reading.highest >= back)


@dataclass(frozen=True)
class AnyOf(Schedule):
    """Whenever at least one of several schedules is due.

    Args:
        schedules: One or more schedules.

    Raises:
        ValueError: If `schedules` is empty.
    """

    schedules: Sequence[Schedule]

    def __post_init__(self):
        if not self.schedules:
            raise ValueError("`schedules` must hold at least one schedule, got none")
        for schedule in self.schedules:
            require_schedule(schedule)
        object.__setattr__(self, "schedules", tuple(self.schedules))

    @property
    def watched(self) -> Sequence[str]:
        """The keys of all of them."""
        return tuple(dict.fromkeys(key for schedule in self.schedules for key in watched_by(schedule)))

    def due(self, clock: Clock) -> bool:
        """Tell whether any of the schedules is due."""
        return any(schedule.due(clock) for schedule in self.schedules)

    def problem(self, horizon: Horizon) -> str | None:
        """Tell which of the schedules can never be due: each one asked for must be able to."""
        for schedule in self.schedules:
            if reason := problem_of(schedule, horizon):
                return f"{schedule}: {reason}"
        return None


def require_schedule(thing: Any) -> None:
    """Refuse what is no schedule.

    Args:
        thing: Perhaps a schedule.

    Raises:
        TypeError: If it has no `due`, is a class instead of an object, or does not tell its settings.
    """
    if isinstance(thing, type):
        raise TypeError(f"`when` must be a schedule, got the class {thing.__name__}: write {thing.__name__}(…)")
    if not callable(getattr(thing, "due", None)):
        raise TypeError(f"`when` must be a schedule such as AtNewData(), or several, got {thing!r}")
    if type(thing).__repr__ is object.__repr__:
        raise TypeError(
            f"`when` needs a __repr__ that tells its settings, as part of a key in checkpoints: {thing!r};"
            " derive it from lightning_fire.Schedule, or make it a dataclass"
        )


def _require_positive(n: int) -> None:
    if not isinstance(n, int) or n < 1:
        raise ValueError(f"`n` must be a whole number of at least 1, got {n!r}")
