"""Monthly retraining: each fit has a new callback object, as in a new process, and continues an earlier training."""

import itertools
import logging
import re
import warnings

import pytest
import torch
from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder, ModelCheckpoint
from recorder import Recorder
from small_training import PlainData, PlainModule, assert_same_weights, dataset, fitted, trainer
from torch.utils.data import DataLoader, IterableDataset

from lightning_fire import (
    AtEpochs,
    AtNewData,
    EveryNSteps,
    FIRECallback,
    announce_new_data,
)

ON_FIRST = AtNewData(skip_first=False)
LACK = (
    "PlainData has no whole-number `chunk`, so that only a later fit with other data counts as new data: give PlainData"
    " one, such as the month, or call announce_new_data(trainer) before fit"
)
ADVICE = "or, if this process continues from weights trained before, when=AtNewData(skip_first=False)"


class Month(PlainData):
    """The data of a month, known by its number, which is the same in the whole process."""

    def __init__(self, month):
        super().__init__(seed=month)
        self.chunk = month


def save_in(folder, when):
    """Return a ModelCheckpoint that keeps every checkpoint, written at a given position of the epoch."""
    options = {
        "end of epoch": {"every_n_epochs": 1, "save_on_train_epoch_end": True},
        "after validation": {"every_n_epochs": 1, "save_on_train_epoch_end": False},
        "every step": {"every_n_train_steps": 1},
    }[when]
    return ModelCheckpoint(folder, "{step}", save_top_k=-1, **options)


class Validated(PlainModule):
    def validation_step(self, batch, batch_idx):
        pass


def train(recorder, data, *more, ckpt_path=None, max_epochs=2, **options):
    """Train, with validation, in a new Trainer without `reload_dataloaders_every_n_epochs`."""
    data.val_dataloader = data.train_dataloader
    options = {"reload_dataloaders_every_n_epochs": 0, "num_sanity_val_steps": 0, **options}
    return fitted(recorder, *more, data=data, module=Validated(), ckpt_path=ckpt_path, max_epochs=max_epochs, **options)


def logged(caplog):
    return [text for text in caplog.messages if text.startswith(("FIRECallback", "Recorder"))]


# --- weights loaded --------------------------------------------------------------------------------------------------


def test_a_fit_on_loaded_weights_logs_before_and_after_training_why_it_does_not_act(caplog):
    with caplog.at_level(logging.INFO):
        fitted(FIRECallback(), data=PlainData(), max_epochs=1)
    before, after = logged(caplog)
    assert before == f"FIRECallback will not act in this fit: {LACK}, {ADVICE}."
    assert after == "FIRECallback did not act in this fit: AtNewData(skip_first=True) was never due."


@pytest.mark.parametrize("place", ["end of epoch", "after validation", "every step"])
def test_acting_on_the_first_data_is_not_repeated_by_a_resume(tmp_path, place, caplog):
    recorder = FIRECallback(ON_FIRST)
    with caplog.at_level(logging.INFO):
        whole = train(recorder, PlainData(), save_in(tmp_path, place))
    assert "AtNewData(skip_first=False); this fit begins with new data. print(" in logged(caplog)[0]
    assert recorder.num_events == 1
    checkpoints = list(tmp_path.glob("*.ckpt"))
    assert len(checkpoints) == (8 if place == "every step" else 2)
    for checkpoint in checkpoints:
        resumed = FIRECallback(ON_FIRST)
        module = train(resumed, PlainData(), ckpt_path=checkpoint)
        assert resumed.num_events == 1
        if place != "every step":  # Lightning cannot resume within an epoch of a plain DataLoader
            assert_same_weights(module, whole)


# --- ckpt_path -------------------------------------------------------------------------------------------------------


def last_month(folder, when=None, data=None, place="end of epoch"):
    """Train two epochs, 8 steps; return the last checkpoint."""
    train(Recorder(when), data or PlainData(), save_in(folder, place))
    return folder / "step=8.ckpt"


@pytest.mark.parametrize("place", ["end of epoch", "after validation", "every step"])
def test_warns_of_a_checkpoint_of_a_finished_training_and_unmarked_data(tmp_path, place, caplog):
    checkpoint, recorder = last_month(tmp_path, place=place), Recorder()
    with (
        pytest.warns(UserWarning, match=re.escape(f"Recorder will not act in this fit: {LACK}.")),
        caplog.at_level(logging.INFO),
    ):
        train(recorder, PlainData(seed=1), ckpt_path=checkpoint, max_epochs=4)
    assert recorder.acted_at == []
    assert logged(caplog)[-1] == "Recorder did not act in this fit: AtNewData(skip_first=True) was never due."


def test_a_checkpoint_at_the_end_of_training_is_said_to_leave_nothing_to_train(tmp_path, caplog):
    checkpoint, recorder = last_month(tmp_path), Recorder(ON_FIRST)
    with caplog.at_level(logging.INFO):
        train(recorder, PlainData(seed=1), ckpt_path=checkpoint, max_epochs=2)
    assert recorder.acted_at == []
    assert logged(caplog)[-1] == (
        "Recorder did not act, as no batch was trained: the checkpoint is at epoch 2, step 8, and the Trainer ends at"
        " max_epochs=2, max_steps=-1, which count from the first fit: raise the end."
    )


def month(how, folder, ckpt_path=None, place="end of epoch", number=1):
    """Train another two epochs on new data, announced in one of the possible ways."""
    recorder, data = Recorder(ON_FIRST if how == "skip_first" else None), PlainData(seed=number)
    if how == "chunk":
        data = Month(number)
    data.val_dataloader = data.train_dataloader
    save = save_in(folder, place)
    options = {"reload_dataloaders_every_n_epochs": 0, "num_sanity_val_steps": 0, "max_epochs": 2 * (number + 1)}
    this = trainer(recorder, save, **options)
    if how == "announce" and ckpt_path.parent != folder:  # the checkpoint of another month
        announce_new_data(this)
    torch.manual_seed(0)
    module = Validated()
    this.fit(module, data, ckpt_path=ckpt_path)
    return recorder, module


@pytest.mark.parametrize("place", ["after validation", "every step"])
@pytest.mark.parametrize("how", ["chunk", "announce", "skip_first"])
@pytest.mark.filterwarnings("ignore:The dirpath has changed")
def test_new_data_in_a_new_process_is_acted_on_once_month_after_month(tmp_path, how, place):
    first = {"chunk": Month(0)}.get(how, PlainData())
    folder = tmp_path / "0"
    checkpoint = last_month(folder, ON_FIRST if how == "skip_first" else None, first, place)
    for number in (1,) if place == "every step" else (1, 2):  # Lightning repeats epochs of such checkpoints later
        recorder, whole = month(how, tmp_path / str(number), checkpoint, place, number)
        assert [epoch for epoch, _ in recorder.acted_at] == [2 * number]
        checkpoints = {int(path.stem[5:]): path for path in (tmp_path / str(number)).glob("*.ckpt")}
        assert len(checkpoints) == (8 if place == "every step" else 2)
        for step, interrupted in checkpoints.items():
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*will not act in this fit", category=UserWarning)
                resumed, module = month(how, interrupted.parent, interrupted, "end of epoch", number)
            assert resumed.acted_at == [], step
            if place != "every step":
                assert_same_weights(module, whole)
        checkpoint = checkpoints[max(checkpoints)]


def test_a_checkpoint_that_is_written_after_the_fit_is_of_a_finished_training(tmp_path):
    first = trainer(Recorder(ON_FIRST), max_epochs=None, max_steps=5)
    first.fit(PlainModule(), datamodule=PlainData())
    first.save_checkpoint(tmp_path / "after.ckpt")
    recorder = Recorder(ON_FIRST)
    fitted(recorder, data=PlainData(), max_epochs=4, ckpt_path=tmp_path / "after.ckpt")
    assert recorder.acted_at == [(2, 5)]


@pytest.mark.parametrize("place", ["end of epoch", "after validation"])
def test_a_checkpoint_of_an_earlier_epoch_and_a_later_end_are_an_interrupted_training(tmp_path, place, caplog):
    """As when a training is prolonged, possibly on the same data."""
    train(Recorder(ON_FIRST), PlainData(), save_in(tmp_path, place))
    recorder = Recorder(ON_FIRST)
    with caplog.at_level(logging.INFO):
        train(recorder, PlainData(), ckpt_path=tmp_path / "step=4.ckpt", max_epochs=4)
    assert recorder.acted_at == []
    assert logged(caplog)[-2].startswith(
        "Recorder will not act in this fit, which is right if you resume an interrupted training, in which it acted 1"
        " time(s): PlainData has no whole-number `chunk`, so that only a later fit"
    )


def test_an_announcement_counts_if_the_checkpoint_has_no_callback_state(tmp_path):
    fitted(ModelCheckpoint(tmp_path, "last", save_on_train_epoch_end=True), data=PlainData(), max_epochs=2)
    recorder = Recorder()
    again = trainer(recorder, max_epochs=4)
    announce_new_data(again)
    again.fit(PlainModule(), datamodule=PlainData(seed=1), ckpt_path=tmp_path / "last.ckpt")
    assert recorder.acted_at == [(2, 8)]


def test_a_chunk_that_is_constant_in_the_process_does_not_warn(tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        checkpoint = last_month(tmp_path, data=Month(0))  # warnings are errors
        train(FIRECallback(), Month(0))
        train(Recorder(), Month(1), ckpt_path=checkpoint, max_epochs=4)
    assert (
        "AtNewData(skip_first=True); new data comes when Month.chunk changes from 0, in this fit with"
        " Trainer(reload_dataloaders_every_n_epochs=1); if this process continues from weights trained before, use"
        " when=AtNewData(skip_first=False). print(" in "\n".join(logged(caplog))
    )


def test_a_resumed_run_whose_events_are_over_says_so_before_and_after_it(tmp_path, caplog):
    fitted(Recorder(AtEpochs([1])), save_in(tmp_path, "end of epoch"), data=PlainData(), max_epochs=3)
    with caplog.at_level(logging.INFO):
        caplog.clear()
        fitted(FIRECallback(AtEpochs([1])), data=PlainData(), max_epochs=3, ckpt_path=tmp_path / "step=8.ckpt")
        fitted(Recorder(AtEpochs([1])), data=PlainData(), max_epochs=3, ckpt_path=tmp_path / "step=8.ckpt")
    past = "AtEpochs(epochs=(1,)) is not due from epoch 2 on."
    right = "will not act in this fit, which is right if you resume an interrupted training"
    assert logged(caplog) == [
        f"FIRECallback {right}: {past}",
        "FIRECallback did not act in this fit: AtEpochs(epochs=(1,)) was never due.",
        f"Recorder {right}, in which it acted 1 time(s): {past}",
        "Recorder did not act in this fit; in earlier fits it acted 1 time(s).",
    ]


@pytest.mark.parametrize("several", [dict, list])
def test_several_loaders_get_advice_that_they_can_follow(several, caplog):
    """A dict has no attribute `chunk`."""

    class Pair(PlainModule):
        def training_step(self, batch, batch_idx):
            batches = batch.values() if several is dict else batch
            return sum(super(Pair, self).training_step(each, batch_idx) for each in batches)

    loaders = [DataLoader(dataset(), 6), DataLoader(dataset(seed=1), 6)]
    given = loaders if several is list else dict(zip("ab", loaders, strict=True))
    trainer(FIRECallback(), max_epochs=1).fit(Pair(), given)
    assert "give fit a DataModule with a `chunk`, such as the month, or call announce_new_data" in logged(caplog)[0]


def test_data_without_end_is_asked_for_its_chunk_at_each_batch():
    class Endless(IterableDataset):
        def __iter__(self):
            return itertools.cycle(dataset())

    class Stream(PlainData):
        @property
        def chunk(self):
            return self.trainer.global_step // 5

        def train_dataloader(self):
            return DataLoader(Endless(), batch_size=6)

    recorder = Recorder([AtNewData(), EveryNSteps(13)])
    fitted(recorder, data=Stream(), max_epochs=-1, max_steps=17, reload_dataloaders_every_n_epochs=0)
    assert recorder.acted_at == [(0, 5), (0, 10), (0, 13), (0, 15)]


# --- searches of Lightning before training ---------------------------------------------------------------------------


FINDERS = {
    "learning rate": lambda: LearningRateFinder(num_training_steps=3, update_attr=False),
    "batch size": lambda: BatchSizeFinder(init_val=6, max_trials=1, steps_per_trial=1),
}


class Sized(PlainData):
    def __init__(self, seed=0):
        super().__init__(seed)
        self.batch_size = 6

    def train_dataloader(self):
        return DataLoader(dataset(seed=self.seed), self.batch_size)


@pytest.mark.parametrize("finder", FINDERS)
def test_a_search_before_training_is_not_a_resume(tmp_path, finder, caplog):
    recorder, module, first = Recorder(), PlainModule(), Sized()
    options = {"default_root_dir": tmp_path, "reload_dataloaders_every_n_epochs": 0}
    this = trainer(recorder, FINDERS[finder](), max_epochs=1, **options)
    with caplog.at_level(logging.INFO):
        this.fit(module, datamodule=first)
        for epochs, data in ((2, first), (3, Sized(seed=1))):
            this.fit_loop.max_epochs = epochs
            this.fit(module, datamodule=data)
    assert [epoch for epoch, _ in recorder.acted_at] == [2]
    before = [text for text in logged(caplog) if "will not act" in text]
    assert len(before) == 2
    assert not any("resume" in text for text in before)


def test_a_resume_is_one_with_a_search_before_it(tmp_path, caplog):
    checkpoint, recorder, search = last_month(tmp_path), Recorder(), FINDERS["learning rate"]()
    caplog.clear()
    with caplog.at_level(logging.INFO):
        train(recorder, PlainData(1), search, ckpt_path=checkpoint, max_epochs=4, default_root_dir=tmp_path)
    assert recorder.acted_at == []
    assert "which is right if you resume an interrupted training" in logged(caplog)[0]
