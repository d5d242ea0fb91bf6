"""The clock that `TrainerClock` reads, over fits of one and of several Trainers, equals one that is written out."""

import math

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from small_training import GrowingData, PlainData, PlainModule, trainer

from lightning_fire.callbacks.clock import TrainerClock
from lightning_fire.when import AtFraction, Reading

BATCHES = 4  # of an epoch of PlainData


class Reader(Callback):
    """Reads the clock as methods do, and notes an event at each reading that a schedule names."""

    def __init__(self, *watched, events=lambda clock: False):
        self.clock, self.clocks, self.events = TrainerClock(watched), [], events

    def setup(self, trainer, pl_module, stage):
        self.clock.prepare()

    def on_load_checkpoint(self, trainer, pl_module, checkpoint):
        self.clock.return_to_epoch_end(checkpoint)

    def on_train_start(self, trainer, pl_module):
        self.clock.start(trainer)

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.clocks.append(self.clock.read(trainer))
        if self.events(self.clocks[-1]):
            self.clock.note_event(self.clocks[-1])

    def on_train_batch_end(self, trainer, *args):
        self.clock.tick(trainer)

    def state_dict(self):
        return self.clock.state_dict()

    def load_state_dict(self, state_dict):
        self.clock.load_state_dict(state_dict)


def times(first_epoch, end_epoch):
    """Epoch, step and whether an epoch starts, at each reading."""
    return [
        (epoch, epoch * BATCHES + batch, batch == 0)
        for epoch in range(first_epoch, end_epoch)
        for batch in range(BATCHES)
    ]


def times_of(reader):
    return [(clock.epoch, clock.step, clock.epoch_start) for clock in reader.clocks]


def test_one_callback_in_two_trainers_counts_each_of_them_from_its_start():
    reader = Reader(events=lambda clock: clock.step == 6)
    for _ in range(2):
        reader.clocks = []
        module = PlainModule()
        trainer(reader, max_epochs=2).fit(module, datamodule=PlainData())
        assert times_of(reader) == times(0, 2)
        assert reader.clock.last_event == 6
    short = trainer(reader, max_epochs=1)
    short.fit(module, datamodule=PlainData())
    assert reader.clock.last_event is None  # there was none in this training


def test_a_second_fit_of_one_trainer_continues_to_count():
    reader = Reader(events=lambda clock: clock.step == 3)
    one, module, data = trainer(reader, max_epochs=2), PlainModule(), PlainData()
    one.fit(module, datamodule=data)
    one.fit_loop.max_epochs = 4
    one.fit(module, datamodule=data)
    assert times_of(reader) == times(0, 4)
    assert reader.clock.last_event == 3


@pytest.mark.parametrize("knows", ["the checkpoint", "nothing"])
@pytest.mark.parametrize("end", [{"max_epochs": 4}, {"max_epochs": -1, "max_steps": 16}], ids=str)
@pytest.mark.parametrize("epochs", [1, 2])
def test_a_fraction_that_a_resumed_fit_begins_with_is_reached_once(tmp_path, epochs, end, knows):
    """Also by a callback that the checkpoint does not have: what is reached by its first reading is due there."""
    save, before, data = ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1), Reader(), PlainData()
    callbacks = [save, before] if knows == "the checkpoint" else [save]
    trainer(*callbacks, **end).fit(PlainModule(), datamodule=data)
    resumed, path = Reader(), tmp_path / f"epoch={epochs - 1}.ckpt"
    trainer(resumed, **end).fit(PlainModule(), datamodule=data, ckpt_path=path)
    assert times_of(resumed) == times(epochs, 4)
    for fraction in (1 / 4, 2 / 4, 3 / 4):
        due = [clock.epoch for clock in resumed.clocks if AtFraction(fraction).due(clock)]
        assert due == ([round(4 * fraction)] if 4 * fraction >= epochs else [])


NAN = math.nan
LOGGED = [
    [0.5, 0.1, 0.9, 0.3, 0.7, 0.2],
    [NAN, 0.6, 0.2, 0.8, NAN, 0.9],  # as where nothing is measured yet
    [NAN, NAN, NAN, -0.5, 0.5, NAN],
]


class Logging(PlainModule):
    def __init__(self, values):
        super().__init__()
        self.values = values

    def on_train_epoch_end(self):
        self.log("measure", self.values[self.current_epoch])
        self.log("other", 1.0)


def slow_readings(values, events):
    """Value, lowest and highest since the last event, and number of events, at the start of each epoch."""
    found = []
    for epoch in range(1, len(values)):
        logged = [value for value in values[:epoch] if not math.isnan(value)]
        last = max((event for event in events if event < epoch), default=1)  # the value then counts as well
        at_event = [value for value in values[:last] if not math.isnan(value)][-1:]
        since = at_event + [value for value in values[last:epoch] if not math.isnan(value)]
        if not any(event < epoch for event in events):
            since = logged
        known = [event for event in events if event < epoch and any(not math.isnan(v) for v in values[:event])]
        found.append(Reading(logged[-1], min(since), max(since), len(known)) if logged else None)
    return found


@pytest.mark.parametrize("events", [(), (3,), (2, 4)], ids=str)
@pytest.mark.parametrize("values", LOGGED, ids=["numbers", "NaN first", "mostly NaN"])
def test_what_is_read_of_a_metric_equals_the_slow_version(values, events, tmp_path):
    reader = Reader("measure", events=lambda clock: clock.epoch_start and clock.epoch in events)
    save = ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1)
    torch.manual_seed(0)
    trainer(save, reader, max_epochs=6).fit(Logging(values), datamodule=PlainData())
    found = [clock.metrics.get("measure") for clock in reader.clocks if clock.epoch_start]

    assert found[0] is None and len(found) == 6
    for epoch, (one, other) in enumerate(zip(found[1:], slow_readings(values, events), strict=True), start=1):
        assert (one is None) == (other is None), epoch
        assert one is None or one == pytest.approx(other), epoch
    assert all(not clock.metrics for clock in reader.clocks if not clock.epoch_start)
    resumed = Reader("measure", events=reader.events)
    path = tmp_path / "epoch=2.ckpt"
    trainer(resumed, max_epochs=6).fit(Logging(values), datamodule=PlainData(), ckpt_path=path)
    assert [clock.metrics for clock in resumed.clocks] == [clock.metrics for clock in reader.clocks if clock.epoch >= 3]


def test_the_chunks_that_are_counted():
    reader, module = Reader(), PlainModule()
    trainer(reader).fit(module, datamodule=GrowingData((1, 3, 2)))
    starts = [clock for clock in reader.clocks if clock.epoch_start]
    assert [clock.chunk for clock in starts] == [0, 1, 1, 1, 2, 2]
    assert [clock.epoch for clock in starts if clock.new_data] == [0, 1, 4]
