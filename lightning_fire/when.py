"""WHEN a method acts: a `Clock` says what time it is in training, a schedule says whether that is a time to act.

No torch and no Lightning in here. A clock reads whole numbers at one of two kinds of moment: the start of an epoch (its
data loaded, no batch seen) and the start of a batch. A schedule is anything with `due(clock) -> bool`; those below also
answer `problem(horizon)`, so that a schedule that can never fire is refused before training starts.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Clock:
    """A moment of training.

    Attributes:
        epoch: Current epoch, counted from 0.
        step: Optimizer steps done so far, over all epochs.
        epoch_start: True at the start of an epoch, before its first batch.
        chunk: Current chunk of data, counted from 0.
        new_data: True at the start of the first epoch that trains on this chunk.
        max_epochs: Epochs that training will have in all; None if not bounded by epochs.
        max_steps: Optimizer steps that training will have in all; None if not bounded by steps.
    """

    epoch: int
    step: int
    epoch_start: bool = True
    chunk: int = 0
    new_data: bool = False
    max_epochs: int | None = None
    max_steps: int | None = None


@dataclass(frozen=True)
class Horizon:
    """How far training will go, as known before it starts; None where unknown or unbounded.

    Attributes:
        max_epochs: Epochs in all.
        max_steps: Optimizer steps in all.
        num_chunks: Chunks of data in all.
    """

    max_epochs: int | None = None
    max_steps: int | None = None
    num_chunks: int | None = None


class Schedule:
    """A rule for when to act."""

    def due(self, clock: Clock) -> bool:
        """Tell whether `clock` is a time to act.

        Args:
            clock: The present moment.
        """
        raise NotImplementedError

    def problem(self, horizon: Horizon) -> str | None:
        """Tell why this schedule can never be due within `horizon`, or None if it can.

        Args:
            horizon: How far training will go.
        """
        return None


@dataclass(frozen=True)
class AtNewData(Schedule):
    """Whenever new data has arrived: at the start of every chunk but the first (paper: vision and language).

    Args:
        skip_first: Do not act on the first chunk, with which training begins.
    """

    skip_first: bool = True

    def due(self, clock: Clock) -> bool:
        """Tell whether a chunk begins."""
        return clock.epoch_start and clock.new_data and not (self.skip_first and clock.chunk == 0)

    def problem(self, horizon: Horizon) -> str | None:
        """Tell whether the data never changes."""
        if self.skip_first and horizon.num_chunks == 1:
            return "the data comes in a single chunk, and skip_first=True leaves out the first"
        return None


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
        if not self.epochs or any(epoch < 0 or epoch != int(epoch) for epoch in self.epochs):
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
    """After every n optimizer steps, before the next batch.

    Args:
        n: Number of optimizer steps between two events, at least 1.

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
        """Tell whether training ends with step n or before."""
        if horizon.max_steps is not None and self.n >= horizon.max_steps:
            return f"training ends after {horizon.max_steps} steps (max_steps={horizon.max_steps})"
        return None


@dataclass(frozen=True)
class AtFraction(Schedule):
    """Once, when a fraction of training is done (the paper's reinforcement learning setting: 0.5).

    Measured in optimizer steps where training is bounded by `max_steps`, otherwise in epochs, rounded up.

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
        """Tell whether the share of training is reached."""
        if clock.max_steps is not None:
            return clock.step == math.ceil(self.fraction * clock.max_steps)
        if clock.max_epochs is not None:
            return clock.epoch_start and clock.epoch == math.ceil(self.fraction * clock.max_epochs)
        return False

    def problem(self, horizon: Horizon) -> str | None:
        """Tell whether training has no known end, or none after the fraction."""
        end = horizon.max_steps if horizon.max_steps is not None else horizon.max_epochs
        if end is None:
            return "training has neither max_epochs nor max_steps"
        if math.ceil(self.fraction * end) >= end:
            unit = "steps" if horizon.max_steps is not None else "epochs"
            return f"training has only {end} {unit}"
        return None


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
        object.__setattr__(self, "schedules", tuple(self.schedules))

    def due(self, clock: Clock) -> bool:
        """Tell whether any of the schedules is due."""
        return any(schedule.due(clock) for schedule in self.schedules)

    def problem(self, horizon: Horizon) -> str | None:
        """Tell which of the schedules can never be due: each one asked for must be able to."""
        for schedule in self.schedules:
            if reason := schedule.problem(horizon):
                return f"{schedule}: {reason}"
        return None


def _require_positive(n: int) -> None:
    if n < 1 or n != int(n):
        raise ValueError(f"`n` must be a whole number of at least 1, got {n!r}")
