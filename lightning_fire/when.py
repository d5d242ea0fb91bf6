"""Schedules: rules that decide from a `Clock` whether an event is due.

A clock is read before each batch; with the first batch of an epoch, the epoch starts. A schedule is anything
with `due(clock) -> bool` and a repr that shows its settings. Those below also have `problem(horizon)`, so that a
schedule that can never be due is an error before training starts. An argument out of range raises a ValueError. Imports
neither torch nor Lightning.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, NamedTuple


class Reading(NamedTuple):
    """Values of a logged metric.

    Attributes:
        value: The last value.
        lowest: The lowest value since the last event, or since the start of training.
        highest: The highest value since the last event, or since the start of training.
        events: Number of events so far.
    """

    value: float
    lowest: float
    highest: float
    events: int = 0


@dataclass(frozen=True)
class Clock:
    """A time in training.

    Attributes:
        epoch: Current epoch, counted from 0.
        step: Number of batches so far that made an optimizer step, over all epochs.
        epoch_start: Whether an epoch starts, before its first batch.
        chunk: Number of times the data has changed so far: 0 on the first data.
        new_data: Whether the first epoch on the current data starts.
        progress: Fraction of training done, in [0, 1]; None if its end is unknown.
        progress_before: The progress at the previous reading of the clock; None as for `progress`.
        metrics: At the start of an epoch, the logged metrics that the schedule watches, by key.
    """

    epoch: int
    step: int
    epoch_start: bool = True
    chunk: int = 0
    new_data: bool = False
    progress: float | None = None
    progress_before: float | None = None
    metrics: Mapping[str, Reading] = field(default_factory=dict)

    @property
    def trained_chunk(self) -> int:
        """Number of changes of the data before the last trained batch."""
        return self.chunk - (self.new_data and self.chunk > 0)


@dataclass(frozen=True)
class Horizon:
    """Length of training in epochs and in steps of all optimizers, as counted by the Trainer; None: unbounded."""

    max_epochs: int | None = None
    max_steps: int | None = None

    def progress(self, epoch: int, steps: int) -> float | None:
        """Return the fraction of training done, the larger one of whole epochs and steps; None without a bound."""
        bounds = (epoch, self.max_epochs), (steps, self.max_steps)
        return max((done / end for done, end in bounds if end), default=None)


class Schedule(ABC):
    """Base class of schedules: a stateless rule for the times of events.

    Subclasses here are not dataclasses: Hydra replaces a dataclass in a list by a dict, and where OmegaConf is
    installed, Lightning's loggers reject a frozen one among the hyperparameters.
    """

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        """Show the settings: the repr is part of the key of a callback's state in checkpoints."""
        settings = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        return f"{type(self).__qualname__}({', '.join(f'{name}={value!r}' for name, value in settings.items())})"

    @abstractmethod
    def due(self, clock: Clock) -> bool:
        """Return whether to act now."""

    @property
    def watched(self) -> Sequence[str]:
        """Keys of the logged metrics that `due` needs."""
        return ()

    def problem(self, horizon: Horizon) -> str | None:
        """Return the reason why this schedule can never be due; None if it can."""
        return None


def problem_of(schedule: Any, horizon: Horizon) -> str | None:
    """Return the reason why a schedule can never be due; None if it can, or has no `problem`."""
    problem = getattr(schedule, "problem", None)
    return problem(horizon) if callable(problem) else None


def schedules_in(schedule: Schedule) -> Sequence[Schedule]:
    """Return the alternatives of a schedule: those of `AnyOf`, or itself."""
    if isinstance(schedule, AnyOf):
        return [part for inner in schedule.schedules for part in schedules_in(inner)]
    return [schedule]


def watched_by(schedule: Any) -> Sequence[str]:
    """Return the keys of the logged metrics that a schedule needs; none if it has no `watched`."""
    return getattr(schedule, "watched", ())


class AtNewData(Schedule):
    """At the start of every chunk of data except the first (paper: vision and language).

    Args:
        skip_first: Whether to skip the first chunk. False: act on it too, for weights from an earlier training; a fit
            resumed from the checkpoint of a finished fit then acts unless the `chunk` is the same.
    """

    def __init__(self, skip_first: bool = True) -> None:
        self.skip_first = skip_first

    def due(self, clock: Clock) -> bool:
        return clock.new_data and not (self.skip_first and clock.chunk == 0)


class AtEpochs(Schedule):
    """At the start of given epochs.

    Args:
        epochs: One or more epochs, counted from 0; `[100]` acts after 100 epochs.
    """

    def __init__(self, epochs: Sequence[int]) -> None:
        several = isinstance(epochs, Sequence) and not isinstance(epochs, str) and epochs
        if not several or not all(isinstance(epoch, Integral) and epoch >= 0 for epoch in epochs):
            raise ValueError(f"`epochs` must be a list of one or more whole numbers from 0, got {epochs!r}")
        self.epochs = tuple(map(int, epochs))

    def due(self, clock: Clock) -> bool:
        return clock.epoch_start and clock.epoch in self.epochs

    def problem(self, horizon: Horizon) -> str | None:
        if horizon.max_epochs is None or min(self.epochs) < horizon.max_epochs:
            return None
        return f"training ends after epoch {horizon.max_epochs - 1} (max_epochs={horizon.max_epochs})"


class EveryNEpochs(Schedule):
    """At the start of epochs n, 2n, 3n, …

    Args:
        n: Number of epochs between two events, at least 1.
    """

    def __init__(self, n: int) -> None:
        self.n = _positive(n)

    def due(self, clock: Clock) -> bool:
        return clock.epoch_start and clock.epoch > 0 and clock.epoch % self.n == 0

    def problem(self, horizon: Horizon) -> str | None:
        return AtEpochs((self.n,)).problem(horizon)


class EveryNSteps(Schedule):
    """After every n steps, before the next batch. A batch that steps several optimizers counts as one step.

    Args:
        n: Number of steps between two events, at least 1.
    """

    def __init__(self, n: int) -> None:
        self.n = _positive(n)

    def due(self, clock: Clock) -> bool:
        return clock.step > 0 and clock.step % self.n == 0

    def problem(self, horizon: Horizon) -> str | None:
        if horizon.max_steps is None or self.n < horizon.max_steps:
            return None
        return f"training ends after {horizon.max_steps} steps (max_steps={horizon.max_steps})"


class AtFraction(Schedule):
    """Once, as soon as a fraction of training is done (the paper's reinforcement learning setting: 0.5).

    The fraction is that of `max_epochs` at the start of epochs and of `max_steps` at every batch, the larger one if
    both are set. After a resume the new bounds count.

    Args:
        fraction: Fraction of training, strictly between 0 and 1.
    """

    def __init__(self, fraction: float) -> None:
        if not isinstance(fraction, Real) or not 0 < float(fraction) < 1:
            raise ValueError(f"`fraction` must be strictly between 0 and 1, got {fraction!r}")
        self.fraction: float = float(fraction)

    def due(self, clock: Clock) -> bool:
        before, now = clock.progress_before, clock.progress
        return before is not None and now is not None and before < self.fraction <= now

    def problem(self, horizon: Horizon) -> str | None:
        bounds = {"epochs": horizon.max_epochs, "steps": horizon.max_steps}
        ends = {unit: end for unit, end in bounds.items() if end is not None}
        if not ends:
            return "training has neither max_epochs nor max_steps"
        if all((end - 1) / end < self.fraction for end in ends.values() if end):
            return "training has only " + " and ".join(f"{end} {unit}" for unit, end in ends.items())
        return None


class WhenMetric(Schedule):
    """At the start of an epoch, when a logged metric has passed a threshold.

    The metric is any that the module or a callback logs at the end of epochs, such as `plasticity/dormant_fraction` by
    `PlasticityMonitor`. After an event it must first return to the other side: an event without effect is not repeated.

    Args:
        metric: Key of the metric, as in `trainer.callback_metrics`.
        above: Due when the metric is above this value.
        below: Due when the metric is below this value. Exactly one of the two must be given.
        rearm: After an event, due again only once the metric has been at or beyond this value on the other side.
            Default: the threshold. A value further away gives hysteresis: no repeated events when the metric
            fluctuates around the threshold.

    Example:
        >>> schedule = WhenMetric("plasticity/dormant_fraction", above=0.2, rearm=0.1)
        >>> schedule.due(Clock(epoch=3, step=30, metrics={schedule.metric: Reading(0.25, 0.0, 0.25)}))
        True
    """

    def __init__(
        self, metric: str, above: float | None = None, below: float | None = None, rearm: float | None = None
    ) -> None:
        self.metric, self.above, self.below, self.rearm = metric, above, below, rearm
        if (above is None) == (below is None):
            raise ValueError(f"one of `above` and `below` must be given, got above={above}, below={below}")
        for name, value in (("above", above), ("below", below), ("rearm", rearm)):
            if not math.isfinite(value or 0):
                raise ValueError(f"`{name}` must be finite, got {value}")
        sign, threshold, back = self._limits
        if sign * back > sign * threshold:
            side = "below" if sign > 0 else "above"
            raise ValueError(f"`rearm` must be at or {side} the threshold {threshold}, got {self.rearm}")

    @property
    def _limits(self) -> tuple[int, float, float]:
        """Direction to the threshold as a sign, the threshold, and the value to return to."""
        sign, threshold = (-1, self.below or 0.0) if self.above is None else (1, self.above)
        return sign, threshold, threshold if self.rearm is None else self.rearm

    @property
    def watched(self) -> Sequence[str]:
        return (self.metric,)

    def due(self, clock: Clock) -> bool:
        reading = clock.metrics.get(self.metric)
        if reading is None or not clock.epoch_start:
            return False
        sign, threshold, back = self._limits
        extreme = reading.lowest if sign > 0 else reading.highest
        return sign * reading.value > sign * threshold and (reading.events == 0 or sign * extreme <= sign * back)


class Never(Schedule):
    """Never due: for methods that act at every step instead of at events."""

    def due(self, clock: Clock) -> bool:
        return False


class AnyOf(Schedule):
    """At the times when at least one of several schedules is due.

    Args:
        schedules: One or more schedules.
    """

    def __init__(self, schedules: Sequence[Schedule]) -> None:
        if not isinstance(schedules, Sequence) or not schedules:
            raise ValueError(f"`when` and `schedules` must be a list of at least one schedule, got {schedules!r}")
        for schedule in schedules:
            require_schedule(schedule)
        self.schedules = tuple(schedules)

    @property
    def watched(self) -> Sequence[str]:
        return tuple(dict.fromkeys(key for schedule in self.schedules for key in watched_by(schedule)))

    def due(self, clock: Clock) -> bool:
        return any(schedule.due(clock) for schedule in self.schedules)

    def problem(self, horizon: Horizon) -> str | None:
        reasons = ((schedule, problem_of(schedule, horizon)) for schedule in self.schedules)
        return next((f"{schedule}: {reason}" for schedule, reason in reasons if reason), None)


def idle_epochs(schedule: Any, horizon: Horizon) -> float:
    """Return the number of epochs of the first data in which a schedule is certainly not due; Inf: all of them.

    0 if unknown in advance.

    Example:
        >>> idle_epochs(AtNewData(), Horizon()), idle_epochs(AtFraction(0.5), Horizon(max_epochs=9))
        (inf, 5)
    """
    if isinstance(schedule, AnyOf):
        return min(idle_epochs(each, horizon) for each in schedule.schedules)
    if isinstance(schedule, AtNewData):
        return math.inf if schedule.skip_first else 0
    return next(iter(_epochs_of(schedule, horizon) or [0]))


def is_past(schedule: Any, horizon: Horizon, epoch: int) -> bool:
    """Return whether a schedule is certainly not due from the start of an epoch on.

    Example:
        >>> is_past(AtEpochs([1]), Horizon(max_epochs=9), 2), is_past(AtFraction(0.5), Horizon(max_epochs=9), 2)
        (True, False)
    """
    if isinstance(schedule, AnyOf):
        return all(is_past(each, horizon, epoch) for each in schedule.schedules)
    epochs = _epochs_of(schedule, horizon)
    return epochs is not None and all(each < epoch for each in epochs)


def _epochs_of(schedule: Any, horizon: Horizon) -> list[int] | None:
    """Return the epochs at whose starts a schedule by epochs is due; None of another one, or if steps end training."""
    end = horizon.max_epochs
    if not isinstance(schedule, AtEpochs | EveryNEpochs | AtFraction) or horizon.max_steps or not end:
        return None
    clocks = (
        Clock(epoch, epoch, new_data=epoch == 0, progress=epoch / end, progress_before=max(0, epoch - 1) / end)
        for epoch in range(end)
    )
    return [clock.epoch for clock in clocks if schedule.due(clock)]


def one_schedule(when: Schedule | Sequence[Schedule] | None) -> Schedule:
    """Return a schedule that is due when one of several is; with None, `AtNewData()`."""
    if when is None:
        return AtNewData()
    several = AnyOf([when] if isinstance(when, str) or not isinstance(when, Sequence) else when)
    return several if len(several.schedules) > 1 else several.schedules[0]


def require_schedule(thing: Any) -> None:
    """Raise a TypeError unless `thing` is an object, not a class, with `due` and a repr that shows its settings."""
    if isinstance(thing, type):
        raise TypeError(f"`when` must be a schedule, got the class {thing.__name__}: write {thing.__name__}(…)")
    if type(thing).__module__.startswith("omegaconf."):
        raise TypeError(f"Hydra has replaced a schedule by a dict: write `_convert_: all` beside `when`, got {thing!r}")
    if not callable(getattr(thing, "due", None)):
        got = repr(thing) if isinstance(thing, str | int | float) else type(thing).__name__
        raise TypeError(f"`when` must be a schedule such as AtNewData(), or several, got {got}")
    if getattr(type(thing), "__repr__", None) is object.__repr__:
        raise TypeError(
            f"`when` needs a __repr__ that shows its settings, as part of a key in checkpoints: {thing!r};"
            " derive it from lightning_fire.Schedule, or make it a dataclass"
        )


def _positive(n: int) -> int:
    """Return a Python int, as it is part of a key in checkpoints; raise a ValueError below 1."""
    if not isinstance(n, Integral) or n < 1:
        raise ValueError(f"`n` must be a whole number of at least 1, got {n!r}")
    return int(n)
