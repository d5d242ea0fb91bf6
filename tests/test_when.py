"""`when`: each schedule over whole trainings, written out; never-due schedules; errors."""

import math
import re
from dataclasses import dataclass, is_dataclass
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lightning_utilities.core.apply_func import apply_to_collection

from lightning_fire.when import (
    AnyOf,
    AtEpochs,
    AtFraction,
    AtNewData,
    Clock,
    EveryNEpochs,
    EveryNSteps,
    Horizon,
    Never,
    Reading,
    Schedule,
    WhenMetric,
    idle_epochs,
    problem_of,
    watched_by,
)


def epoch_starts(schedule, epochs_per_chunk, steps_per_epoch=10):
    """Epochs at whose start `schedule` is due, in a training over chunks."""
    chunks = [chunk for chunk, epochs in enumerate(epochs_per_chunk) for _ in range(epochs)]
    end = len(chunks)
    due = []
    for epoch, chunk in enumerate(chunks):
        new = epoch == 0 or chunk != chunks[epoch - 1]
        clock = Clock(epoch, epoch * steps_per_epoch, True, chunk, new, epoch / end, (epoch - 1) / end)
        if schedule.due(clock):
            due.append(epoch)
    return due


def test_at_new_data():
    assert epoch_starts(AtNewData(), [3, 2, 1]) == [3, 5]
    assert epoch_starts(AtNewData(skip_first=False), [3, 2, 1]) == [0, 3, 5]
    assert AtNewData().due(Clock(3, 30, epoch_start=False, chunk=1, new_data=True))  # data without end


def test_at_epochs():
    assert epoch_starts(AtEpochs([4, 1]), [6]) == [1, 4]
    assert not AtEpochs([4]).due(Clock(4, 41, epoch_start=False))


def test_every_n_epochs():
    assert epoch_starts(EveryNEpochs(2), [7]) == [2, 4, 6]


def test_every_n_steps():
    due = [step for step in range(20) if EveryNSteps(7).due(Clock(0, step, epoch_start=False))]
    assert due == [7, 14]


@given(st.integers(2, 50), st.floats(0.01, 0.99))
def test_at_fraction_is_due_once_at_or_just_after_the_fraction(epochs, fraction):
    due = epoch_starts(AtFraction(fraction), [epochs])
    possible = AtFraction(fraction).problem(Horizon(max_epochs=epochs)) is None
    assert len(due) == possible
    assert all(fraction * epochs <= epoch < fraction * epochs + 1 for epoch in due)


@given(st.integers(2, 50), st.integers(1, 7), st.floats(0.01, 0.99))
def test_at_fraction_is_due_once_however_many_steps_a_batch_makes(batches, steps_per_batch, fraction):
    end = batches * steps_per_batch
    due = [
        steps
        for steps in range(0, end, steps_per_batch)
        if AtFraction(fraction).due(Clock(0, 0, progress=steps / end, progress_before=(steps - steps_per_batch) / end))
    ]
    assert len(due) == (fraction <= (end - steps_per_batch) / end)
    assert all(fraction * end - 1e-9 <= steps < fraction * end + steps_per_batch for steps in due)
    assert not AtFraction(0.5).due(Clock(5, 50))


@pytest.mark.parametrize(
    ("horizon", "progress"),
    [
        (Horizon(), None),
        (Horizon(max_epochs=4), 0.5),
        (Horizon(max_steps=10**6), 2e-5),
        (Horizon(max_epochs=4, max_steps=10**6), 0.5),  # the bound that is met first counts
        (Horizon(max_epochs=1000, max_steps=25), 0.8),
    ],
)
def test_progress_is_measured_by_the_bound_that_will_be_met_first(horizon, progress):
    assert horizon.progress(epoch=2, steps=20) == progress


def test_any_of():
    assert epoch_starts(AnyOf([AtNewData(), AtEpochs([1])]), [3, 2]) == [1, 3]


@pytest.mark.parametrize(
    ("schedule", "horizon", "reason"),
    [
        (AtEpochs([200]), Horizon(max_epochs=200), r"ends after epoch 199 \(max_epochs=200\)"),
        (EveryNEpochs(10), Horizon(max_epochs=10), "ends after epoch 9"),
        (EveryNSteps(50), Horizon(max_steps=50), "ends after 50 steps"),
        (AtFraction(0.5), Horizon(), "neither max_epochs nor max_steps"),
        (AtFraction(0.9), Horizon(max_epochs=5), "only 5 epochs"),
        (AtFraction(0.9), Horizon(max_epochs=5, max_steps=4), "only 5 epochs and 4 steps"),
        (AnyOf([AtNewData(), AtEpochs([9])]), Horizon(max_epochs=5), r"AtEpochs\(epochs=\(9,\)\): training ends"),
    ],
)
def test_a_schedule_that_can_never_be_due_has_a_reason(schedule, horizon, reason):
    assert re.search(reason, schedule.problem(horizon))


@pytest.mark.parametrize(
    ("schedule", "horizon"),
    [
        (AtNewData(), Horizon()),
        (AtEpochs([1, 500]), Horizon(max_epochs=2)),
        (EveryNSteps(50), Horizon(max_epochs=1)),
        (AtFraction(0.5), Horizon(max_steps=2)),
        (AtFraction(0.9), Horizon(max_epochs=1, max_steps=100)),
        (AnyOf([AtNewData(), AtEpochs([1])]), Horizon(max_epochs=5)),
    ],
)
def test_a_schedule_that_may_be_due_has_problem_none(schedule, horizon):
    assert schedule.problem(horizon) is None


def test_numbers_of_numpy_are_those_of_python():
    """Also in the repr, which is a key in checkpoints."""
    assert repr(EveryNSteps(np.int64(3))) == repr(EveryNSteps(3))
    assert repr(EveryNEpochs(np.int32(3))) == repr(EveryNEpochs(3))
    assert repr(AtEpochs(list(np.arange(1, 3)))) == repr(AtEpochs([1, 2]))
    assert repr(AtFraction(np.float32(0.5))) == repr(AtFraction(0.5))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: AtEpochs([]), "`epochs` must be a list of one or more whole numbers from 0, got"),
        (lambda: AtEpochs([-1]), r"got \[-1\]"),
        (lambda: EveryNEpochs(0), "`n` must be a whole number of at least 1, got 0"),
        (lambda: EveryNSteps(-5), "`n` must be a whole number of at least 1, got -5"),
        (lambda: AtFraction(0), "`fraction` must be strictly between 0 and 1, got 0"),
        (lambda: AtFraction(1.0), "`fraction` must be strictly between 0 and 1, got 1.0"),
        (lambda: AnyOf([]), "`schedules` must be a list of at least one"),
        (lambda: AtEpochs(5), "`epochs` must be a list of one or more whole numbers from 0, got 5"),
        (lambda: AtEpochs("12"), "`epochs` must be a list"),
        (lambda: EveryNSteps("3"), "`n` must be a whole number of at least 1, got '3'"),
    ],
)
def test_errors(build, message):
    with pytest.raises(ValueError, match=message):
        build()


BATCHES = 4  # of an epoch
LEAVES = [
    *(AtNewData(skip) for skip in (True, False)),
    *(AtEpochs(epochs) for epochs in ([0], [3], [5, 2], [1, 9])),
    *(EveryNEpochs(n) for n in (1, 4)),
    *(EveryNSteps(n) for n in (3, 9)),
    *(AtFraction(fraction) for fraction in (0.2, 0.5, 0.75)),
    WhenMetric("m", above=0.5),
]
NESTED = [AnyOf([one, AnyOf([other])]) for one, other in permutations(LEAVES, 2)]


def readings_of_the_first_data(horizon):
    """The clock at each of its readings in a training on one set, from its start to its end."""
    before = horizon.progress(-1, -1)
    for epoch in range(10 if horizon.max_epochs is None else horizon.max_epochs):
        for reading in range(BATCHES + 1):  # at the start of the epoch, and of each batch
            step = epoch * BATCHES + max(0, reading - 1)
            if horizon.max_steps is not None and step >= horizon.max_steps:
                return
            now, metrics = horizon.progress(epoch, step), {"m": Reading(0.9, 0.1, 0.9)}
            yield Clock(epoch, step, reading == 0, 0, reading == 0 and epoch == 0, now, before, metrics)
            before = now


def leaves_of(schedule):
    parts = getattr(schedule, "schedules", None)
    return [schedule] if parts is None else [leaf for part in parts for leaf in leaves_of(part)]


def first_due_epoch(schedule, horizon):
    return next((clock.epoch for clock in readings_of_the_first_data(horizon) if schedule.due(clock)), None)


@pytest.mark.parametrize("max_steps", [None, 2, 14, 40])
@pytest.mark.parametrize("max_epochs", [None, 1, 4, 7, 8])
def test_idle_epochs_end_before_the_first_event(max_epochs, max_steps):
    """A training that others share up to then must not go past it; it may end earlier only if times are unknown."""
    horizon = Horizon(max_epochs, max_steps)
    first = {leaf: first_due_epoch(leaf, horizon) for leaf in LEAVES}
    for schedule in [*LEAVES, *NESTED]:
        idle, parts = idle_epochs(schedule, horizon), leaves_of(schedule)
        due = min((first[part] for part in parts if first[part] is not None), default=None)
        assert due is None or idle <= due, schedule
        by_epoch = all(isinstance(part, AtEpochs | EveryNEpochs | AtFraction) and first[part] for part in parts)
        if by_epoch and max_epochs and not max_steps:
            assert idle == due, schedule
        if all(isinstance(part, AtNewData) and part.skip_first for part in parts):
            assert idle == math.inf, schedule


class Fibonacci(Schedule):
    """A user's own schedule."""

    def __init__(self, first):
        self.first = first

    def due(self, clock):
        return clock.step in (self.first, 2 * self.first)


@dataclass
class Minimal:
    """Another, with nothing but `due`."""

    def due(self, clock):
        return clock.step == 7


def test_custom_schedules():
    assert repr(Fibonacci(3)) == "Fibonacci(first=3)"
    either = AnyOf([Fibonacci(3), Minimal()])
    assert [step for step in range(9) if either.due(Clock(0, step))] == [3, 6, 7]
    assert problem_of(either, Horizon(max_epochs=1)) is None
    assert problem_of(Minimal(), Horizon(max_epochs=1)) is None


def metric_events(schedule, values):
    """Epochs at whose start `schedule` is due, where `values[i]` was logged at the end of epoch i."""
    due, lowest, highest = [], None, None
    for epoch in range(1, len(values) + 1):
        value = values[epoch - 1]
        lowest, highest = (value, value) if lowest is None else (min(lowest, value), max(highest, value))
        if schedule.due(Clock(epoch, epoch, metrics={"m": Reading(value, lowest, highest, len(due))})):
            due.append(epoch)
            lowest = highest = value
    return due


def test_when_metric_acts_once_each_time_that_it_passes_the_threshold():
    assert metric_events(WhenMetric("m", above=0.5), [0.1, 0.6, 0.7, 0.8]) == [2]
    assert metric_events(WhenMetric("m", above=0.5), [0.6, 0.4, 0.6, 0.5, 0.51, 0.52]) == [1, 3, 5]
    assert metric_events(WhenMetric("m", below=0.5), [0.6, 0.4, 0.3, 0.5, 0.2]) == [2, 5]


def test_when_metric_with_hysteresis_does_not_repeat_events():
    trembling = [0.6, 0.45, 0.6, 0.45, 0.6, 0.1, 0.6]
    assert metric_events(WhenMetric("m", above=0.5), trembling) == [1, 3, 5, 7]
    assert metric_events(WhenMetric("m", above=0.5, rearm=0.2), trembling) == [1, 7]
    assert metric_events(WhenMetric("m", below=-0.5, rearm=-0.2), [-value for value in trembling]) == [1, 7]


def test_when_metric_needs_a_reading_and_the_start_of_an_epoch():
    schedule = WhenMetric("m", above=0.5)
    assert not schedule.due(Clock(3, 30))
    reading = {"m": Reading(0.7, 0.7, 0.7)}
    assert not schedule.due(Clock(3, 31, epoch_start=False, metrics=reading))
    assert not schedule.due(Clock(3, 30, metrics={"other": reading["m"]}))
    assert schedule.due(Clock(3, 30, metrics=reading))
    both = AnyOf([AtEpochs([1]), schedule, WhenMetric("n", below=0.0)])
    assert watched_by(both) == ("m", "n")
    assert both.due(Clock(3, 30, metrics=reading))
    assert watched_by(AtNewData()) == ()


def test_when_metric_rejects_invalid_arguments():
    for wrong in ({}, {"above": 1.0, "below": 0.0}):
        with pytest.raises(ValueError, match="one of `above` and `below` must be given"):
            WhenMetric("m", **wrong)
    with pytest.raises(ValueError, match=re.escape("`rearm` must be at or below the threshold 0.5, got 0.6")):
        WhenMetric("m", above=0.5, rearm=0.6)
    with pytest.raises(ValueError, match=re.escape("`rearm` must be at or above the threshold 0.5, got 0.4")):
        WhenMetric("m", below=0.5, rearm=0.4)
    for value in (float("nan"), float("inf"), float("-inf")):
        for name, arguments in {
            "above": {"above": value},
            "below": {"below": value},
            "rearm": {"above": 0.5, "rearm": value},
        }.items():
            with pytest.raises(ValueError, match=re.escape(f"`{name}` must be finite, got {value}")):
                WhenMetric("m", **arguments)


SCHEDULES = [
    AtNewData(skip_first=False),
    AtEpochs([1, 2]),
    EveryNEpochs(3),
    EveryNSteps(3),
    AtFraction(0.5),
    WhenMetric("loss", above=2.0, rearm=1.0),
    AnyOf([AtNewData(), EveryNSteps(3)]),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: type(schedule).__name__)
def test_schedules_are_values(schedule):
    """Equal and hashable by their settings, and as hyperparameters left as they are."""
    same = eval(repr(schedule))
    assert schedule == same and hash(schedule) == hash(same) and schedule != EveryNSteps(9)
    hyperparameters = {"when": schedule, "others": [schedule]}
    assert apply_to_collection(hyperparameters, int, str) == hyperparameters  # by a logger, if OmegaConf is installed
    assert not is_dataclass(schedule)  # of which Hydra makes a dict


def test_all_schedules_are_tried():
    public = {kind for kind in Schedule.__subclasses__() if kind.__module__ == Schedule.__module__}
    assert public == {Never, *(type(schedule) for schedule in SCHEDULES)}
    assert not any(Never().due(clock) for clock in (Clock(0, 0, new_data=True), Clock(3, 9, chunk=1, new_data=True)))


HYDRA = """
_target_: lightning_fire.when.one_schedule
when:
  - {_target_: lightning_fire.AtEpochs, epochs: [20]}
  - _target_: lightning_fire.AnyOf
    schedules: [{_target_: lightning_fire.AtNewData}, {_target_: lightning_fire.WhenMetric, metric: a, above: 1}]
"""


def test_several_schedules_of_hydra():
    """`instantiate` makes OmegaConf's containers of lists, and of dataclasses in them."""
    utils, omegaconf = pytest.importorskip("hydra.utils"), pytest.importorskip("omegaconf")
    schedule = utils.instantiate(omegaconf.OmegaConf.create(HYDRA))
    assert schedule == AnyOf([AtEpochs([20]), AnyOf([AtNewData(), WhenMetric("a", above=1)])])
    with pytest.raises(TypeError, match="write `_convert_: all` beside `when`"):
        AnyOf(omegaconf.OmegaConf.create([{"fields of a": "dataclass"}]))
