"""Base class of all methods: acts when due and once per event, also across fits and resumes."""

import copy
import pickle
import signal
import warnings

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy, ModelParallelStrategy
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from methods_table import ALL, callback_of
from recorder import Recorder
from small_training import (
    GrowingData,
    PlainData,
    PlainModule,
    assert_same_weights,
    dataset,
    fitted,
    snapshots_of,
    state_of,
    trainer,
)
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.data import DataLoader

from lightning_fire import (
    AnyOf,
    AtEpochs,
    AtFraction,
    AtNewData,
    EveryNEpochs,
    EveryNSteps,
    FIRECallback,
    L2Init,
    Log,
    OptimizerReset,
    PlasticityCallback,
    PlasticityMonitor,
    Schedule,
    WeightClipping,
    Weights,
    announce_new_data,
)


def acted_at(when=None, data=None, **options):
    recorder = Recorder(when)
    fitted(recorder, data=data, **options)
    return recorder.acted_at


def test_acts_after_new_data_is_loaded_and_before_its_first_batch():
    """Chunks of 2, 4 and 6 batches an epoch, 2 epochs each."""
    recorder = Recorder()
    fitted(recorder)
    assert recorder.acted_at == [(2, 4), (4, 12)]
    assert recorder.batches_ahead == 6


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        (AtNewData(skip_first=False), [(0, 0), (2, 4), (4, 12)]),
        (AtEpochs([1, 4]), [(1, 2), (4, 12)]),
        (EveryNEpochs(3), [(3, 8)]),
        (EveryNSteps(5), [(2, 5), (3, 10), (4, 15), (5, 20)]),
        (EveryNSteps(4), [(2, 4), (3, 8), (4, 12), (4, 16), (5, 20)]),  # three of them at the start of an epoch
        (AtFraction(0.5), [(3, 8)]),
        ([AtNewData(), AtEpochs([2, 3])], [(2, 4), (3, 8), (4, 12)]),  # twice due at epoch 2, acts once
        (AnyOf([AtEpochs([5]), EveryNSteps(23)]), [(5, 18), (5, 23)]),
    ],
)
def test_schedules_over_a_whole_fit(when, expected):
    assert acted_at(when) == expected


def test_steps_are_optimizer_steps_and_an_event_is_never_inside_an_accumulation_window():
    assert acted_at(EveryNSteps(2), data=PlainData(), max_epochs=2, accumulate_grad_batches=3) == [(1, 2)]


class TwoOptimizers(PlainModule):
    """Manual optimization: `global_step` counts two for each batch."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        for optimizer in self.optimizers():
            optimizer.zero_grad()
            self.manual_backward(super().training_step(batch, batch_idx))
            optimizer.step()

    def configure_optimizers(self):
        return [torch.optim.SGD(part.parameters(), 0.1) for part in (self.net[0], self.net[3])]


def test_two_optimizers_do_not_double_the_steps():
    assert acted_at(EveryNSteps(3), data=PlainData(), module=TwoOptimizers(), max_epochs=2) == [(0, 3), (1, 6)]


class OwnSteps(PlainModule):
    """Steps that Lightning does not count, every `every` batches: `global_step` stays 0."""

    def __init__(self, how="raw", every=1):
        super().__init__()
        self.automatic_optimization, self.how, self.every = False, how, every

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers(use_pl_optimizer=self.how == "counted")

        def closure():
            optimizer.zero_grad()
            loss = super(OwnSteps, self).training_step(batch, batch_idx)
            self.manual_backward(loss)
            return loss

        if (batch_idx + 1) % self.every:
            return
        elif self.how == "closure":
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()


@pytest.mark.parametrize(
    ("when", "every", "expected"),
    [
        (AtEpochs([1, 2]), 1, [(1, 4), (2, 8)]),
        (EveryNSteps(5), 1, [(1, 5), (2, 10)]),
        (EveryNSteps(3), 2, [(1, 3), (3, 6)]),  # only if Lightning counts
    ],
)
@pytest.mark.parametrize("how", ["raw", "closure", "counted"])
def test_steps_that_lightning_does_not_count_are_steps(when, every, expected, how):
    if every > 1 and how != "counted":
        pytest.skip("each batch counts")
    module = OwnSteps(how, every)
    assert acted_at(when, data=PlainData(), module=module, max_epochs=4)[:2] == expected
    assert bool(module.trainer.global_step) == (how == "counted")


@pytest.mark.parametrize("how", ["raw", "closure"])
def test_steps_that_lightning_does_not_count_are_seen_after_and_not_before_them(how):
    """A method that changes weights acts; one that changes gradients cannot, and says so once."""

    def trained(how, *callbacks):
        torch.manual_seed(0)
        return fitted(*callbacks, module=OwnSteps(how), data=PlainData(), max_epochs=2)

    clipped = [trained(each, PlasticityCallback(WeightClipping(0.1))) for each in ("counted", how)]
    assert_same_weights(*clipped)
    assert not torch.equal(clipped[0].net[0].weight, trained("counted").net[0].weight)
    with pytest.warns(UserWarning, match="L2Init sees no step, as OwnSteps steps its optimizers without") as warned:
        penalized = trained(how, PlasticityCallback(L2Init(0.1)))
    assert sum("sees no step" in str(each.message) for each in warned) == 1
    assert_same_weights(penalized, trained("counted"))


def test_a_resume_continues_the_count_of_steps_that_lightning_does_not_count(tmp_path):
    recorder, resumed = Recorder(EveryNSteps(6)), Recorder(EveryNSteps(6))
    module = fitted(recorder, module=OwnSteps(), data=PlainData(), max_epochs=2)
    module.trainer.save_checkpoint(tmp_path / "end.ckpt")
    fitted(resumed, module=OwnSteps(), data=PlainData(), max_epochs=4, ckpt_path=tmp_path / "end.ckpt")
    assert [recorder.acted_at, resumed.acted_at] == [[(1, 6)], [(3, 12)]]


def test_the_count_continues_in_the_next_fit_of_a_trainer():
    recorder, module = Recorder(EveryNSteps(3)), TwoOptimizers()
    same_trainer = trainer(recorder, max_epochs=1)
    for epochs in (1, 2):
        same_trainer.fit_loop.max_epochs = epochs
        same_trainer.fit(module, datamodule=PlainData())
    assert recorder.acted_at == [(0, 3), (1, 6)]


@pytest.mark.parametrize(
    ("module", "bounds", "expected"),
    [
        (PlainModule, {"max_epochs": None, "max_steps": 10}, [(1, 5)]),
        (TwoOptimizers, {"max_epochs": None, "max_steps": 10}, [(0, 3)]),  # 2 a batch: 6 of 10, after 4 of 10
        (PlainModule, {"max_epochs": 4, "max_steps": 10**6}, [(2, 8)]),
        (PlainModule, {"max_epochs": 1000, "max_steps": 10}, [(1, 5)]),
    ],
)
def test_a_fraction_of_training_by_the_bound_that_is_met_first(module, bounds, expected):
    assert acted_at(AtFraction(0.5), data=PlainData(), module=module(), **bounds) == expected


def test_events_are_logged_on_lightnings_axis(tmp_path):
    """In manual optimization that is not `global_step`."""
    fitted(
        Recorder(EveryNSteps(3)),
        LearningRateMonitor("step"),
        PlasticityMonitor(),
        data=PlainData(),
        module=TwoOptimizers(),
        max_epochs=2,
        folder=tmp_path,
    )
    log = EventAccumulator(str(tmp_path)).Reload()
    assert [event.step for event in log.Scalars("lr-SGD")] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert [event.step for event in log.Scalars("recorder/event")] == [3, 6]
    assert [event.step for event in log.Scalars("plasticity/chunk")] == [0, 4]
    assert [event.step for event in log.Scalars("plasticity.raw/dfi")] == [3, 7]


class Thrice(Schedule):
    """A user's own schedule."""

    def __init__(self, first):
        self.first = first

    def due(self, clock):
        return clock.step in (self.first, 2 * self.first, 3 * self.first)


def test_tensorboard_shows_before_and_after_in_one_curve(tmp_path):
    """The events are before steps 4 and 12."""
    method = snapshots_of(FIRECallback)()
    fitted(method, PlasticityCallback(OptimizerReset()), folder=tmp_path)
    log = EventAccumulator(str(tmp_path)).Reload()
    for metric in ("dfi_normalized", "lambda_max"):
        curve = [(event.step, event.value) for event in log.Scalars(f"events/fire {metric}")]
        (_, _, first), (_, _, second) = method.seen
        expected = [
            (step - before, pytest.approx(values[f"fire/{metric}_{'before' if before else 'after'}"]))
            for step, values in ((4, first), (12, second))
            for before in (True, False)
        ]
        assert curve == expected
    assert {tag for tag in log.Tags()["scalars"] if tag.startswith("events/")} == {
        f"events/fire {metric}" for metric in ("dfi_normalized", "lambda_max")
    }
    sentences = [event.tensor_proto.string_val[0].decode() for event in log.Tensors("events/fire/text_summary")]
    assert [text.partition(" (")[0] for text in sentences] == [
        "Snapshots acted at epoch 2, step 4, new data: chunk 1",
        "Snapshots acted at epoch 4, step 12, new data: chunk 2",
    ]


def test_a_custom_schedule():
    assert acted_at(Thrice(2)) == [(1, 2), (2, 4), (2, 6)]
    assert Recorder(Thrice(2)).state_key == "Recorder(Thrice(first=2))"


# --- what new data is ------------------------------------------------------------------------------------------------


def test_a_datamodule_without_chunks_is_new_in_the_next_fit_only():
    recorder, module = Recorder(), PlainModule()
    first = PlainData(seed=0)
    trainer(recorder, max_epochs=2).fit(module, datamodule=first)
    trainer(recorder, max_epochs=2).fit(module, datamodule=first)
    assert recorder.acted_at == []  # the same data again
    trainer(recorder, max_epochs=2).fit(module, datamodule=PlainData(seed=1))
    assert recorder.acted_at == [(0, 0)]


def test_numbering_continues_over_several_chunked_datamodules():
    recorder, module = Recorder(), PlainModule()
    for _ in range(2):
        trainer(recorder, max_epochs=2).fit(module, datamodule=GrowingData((1, 1)))
    assert recorder.acted_at == [(1, 2), (0, 0), (1, 2)]


def test_the_same_loader_in_a_new_list_is_not_new_data():
    recorder, module, loader = Recorder(), PlainModule(), DataLoader(dataset(), batch_size=6)

    class First(PlainModule):
        def training_step(self, batch, batch_idx):
            return super().training_step(batch[0], batch_idx)

    module = First()
    for _ in range(2):
        trainer(recorder, max_epochs=1).fit(module, [loader])
    assert recorder.acted_at == []
    trainer(recorder, max_epochs=1).fit(module, [DataLoader(dataset(seed=1), batch_size=6)])
    assert recorder.acted_at == [(0, 0)]


class Sequence(GrowingData):
    """Gives its epochs these chunk numbers."""

    def __init__(self, numbers):
        super().__init__()
        self.chunks = numbers


@pytest.mark.parametrize(
    ("numbers", "epochs"),
    [
        ([0, 1, 0, 0, 2, 0], [1, 2, 4, 5]),  # tasks that come back
        ([1, 1, 2, 2, 3, 3], [2, 4]),  # counted from 1
        ([np.int64(number) for number in (0, 0, 1, 1, 2, 2)], [2, 4]),
    ],
)
def test_data_is_new_when_the_number_of_the_chunk_changes(numbers, epochs):
    assert [epoch for epoch, _ in acted_at(data=Sequence(numbers))] == epochs


def test_datamodules_of_one_chunk_in_several_fits():
    recorder, module = Recorder(), PlainModule()
    with pytest.warns(
        UserWarning, match="will not act in this fit: GrowingData has a single chunk, so that only a later"
    ):
        trainer(recorder, max_epochs=1).fit(module, datamodule=GrowingData((1,)))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*will not act.*")
        trainer(recorder, max_epochs=1).fit(module, datamodule=GrowingData((1,)))
    assert recorder.acted_at == [(0, 0)]


def test_callbacks_can_be_copied_and_pickled_between_fits():
    recorder = Recorder()
    trainer(recorder, max_epochs=1).fit(PlainModule(), datamodule=PlainData())
    for copied in (copy.deepcopy(recorder), pickle.loads(pickle.dumps(recorder))):
        assert copied.clock.state_dict() == recorder.clock.state_dict()


class Announces(PlainData):
    """Announces that its data has changed when its dataloader is requested."""

    def train_dataloader(self):
        if self.trainer.current_epoch in (0, 2):
            announce_new_data(self.trainer)
        return super().train_dataloader()


class AnnouncesBefore(Callback):
    """Announces at the end of an epoch that the next one has new data."""

    def on_train_epoch_end(self, trainer, pl_module):
        if trainer.current_epoch == 1:
            announce_new_data(trainer)


@pytest.mark.parametrize("stop", [{"every_n_epochs": 1, "save_on_train_epoch_end": True}, {"every_n_train_steps": 1}])
@pytest.mark.parametrize("how", ["when asked", "before"])
def test_an_announcement_counts_once_across_a_resume(tmp_path, how, stop):
    """Also where the resumed run repeats it, or had it before its checkpoint."""

    def run(recorder, *more, **options):
        others = [AnnouncesBefore()] if how == "before" else []
        data = Announces() if how == "when asked" else PlainData()
        fitted(recorder, *others, *more, data=data, max_epochs=4, **options)
        return recorder.acted_at

    whole = run(Recorder(), ModelCheckpoint(tmp_path, "{step}", save_top_k=-1, **stop))
    assert whole == [(2, 8)]
    checkpoints = sorted(tmp_path.glob("*.ckpt"))
    assert len(checkpoints) == (4 if "every_n_epochs" in stop else 16)
    for checkpoint in checkpoints:
        step = torch.load(checkpoint, weights_only=True)["global_step"]
        if "every_n_train_steps" in stop and how == "before" and step == 8:
            continue  # written before the announcement, which Lightning does not repeat
        epochs = [epoch for epoch, _ in run(Recorder(), ckpt_path=checkpoint)]
        assert epochs == ([2] if step <= 8 else []), checkpoint.name


# --- resume ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", [AtNewData(), EveryNEpochs(2), EveryNSteps(4), [AtNewData(), EveryNSteps(6)]])
def test_resume_from_the_end_or_the_middle_of_an_epoch(tmp_path, when):
    """From the last batch of an epoch: `test_progress`."""
    whole = Recorder(when)
    ends = ModelCheckpoint(tmp_path, "end,{step}", save_top_k=-1, every_n_epochs=1, save_on_train_epoch_end=True)
    fitted(whole, ends, ModelCheckpoint(tmp_path, "{step}", save_top_k=-1, every_n_train_steps=1))
    steps = {f"end,step={step}": step for step in (2, 4, 8, 12, 18, 24)}
    for name, step in [*steps.items(), *((f"step={step}", step) for step in (1, 3, 5, 6, 7, 11, 13, 17, 19, 23))]:
        resumed = Recorder(when)
        fitted(resumed, ckpt_path=tmp_path / f"{name}.ckpt")
        assert [time for time in whole.acted_at if time[1] < step] + resumed.acted_at == whole.acted_at, name


@pytest.mark.filterwarnings("ignore:The dirpath has changed")
@pytest.mark.parametrize("when", [AtNewData(), AtEpochs([1, 2]), EveryNEpochs(1)], ids=repr)
def test_a_second_resume_repeats_no_event(tmp_path, when):
    """From within the epoch that the first resume started: Lightning then restarts it and trains batches twice."""

    def run(folder=None, ckpt_path=None):
        recorder = Recorder(when)
        save = [ModelCheckpoint(folder, "{step}", save_top_k=-1, every_n_train_steps=1)] if folder else []
        fitted(recorder, *save, data=GrowingData((1, 1, 1)), max_epochs=3, ckpt_path=ckpt_path)
        return recorder.num_events

    assert run(tmp_path) == 2
    for last_batch in (2, 6):
        run(tmp_path / f"from{last_batch}", tmp_path / f"step={last_batch}.ckpt")
        checkpoints = list((tmp_path / f"from{last_batch}").glob("*.ckpt"))
        assert checkpoints
        assert [run(ckpt_path=checkpoint) for checkpoint in checkpoints] == [2] * len(checkpoints)


class Numbered(GrowingData):
    """Like our own DataModules: `chunk_at` is the chunk of an epoch."""

    def chunk_at(self, epoch):
        return self.chunks[epoch]


def test_a_resume_with_the_same_callback_object_and_data_of_another(tmp_path):
    """As in a notebook: interrupted, then rebuilt except for the callback."""
    recorder = Recorder()
    fitted(recorder, ModelCheckpoint(tmp_path, "{epoch}", save_on_train_epoch_end=True), max_epochs=3)
    recorder.acted_at.clear()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*was used in a fit of another module")
        fitted(recorder, ckpt_path=tmp_path / "epoch=2.ckpt")
    assert recorder.acted_at == [(4, 12)]


def test_a_resume_in_the_middle_of_a_run_without_the_callback(tmp_path):
    """The chunk is known at once, and the steps are counted as the run had counted them."""

    class Chunks(Recorder):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            super().on_train_batch_start(trainer, pl_module, batch, batch_idx)
            self.chunks = [*getattr(self, "chunks", []), self.chunk]

    fitted(ModelCheckpoint(tmp_path, "{step}", save_top_k=-1, every_n_train_steps=1), data=Numbered())
    for step in (5, 6, 7):  # of epoch 2, the first of chunk 1
        recorder = Chunks([AtNewData(), EveryNSteps(9)])
        fitted(recorder, data=Numbered(), ckpt_path=tmp_path / f"step={step}.ckpt")
        assert recorder.chunks[0] == 1
        assert recorder.acted_at == [(3, 9), (4, 12), (5, 18)]


def test_steps_of_a_run_with_two_optimizers_and_no_callback(tmp_path):
    options = {"data": PlainData(), "max_epochs": 4}
    save = ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1, save_on_train_epoch_end=True)
    fitted(save, module=TwoOptimizers(), **options)
    recorder = Recorder(EveryNSteps(5))
    fitted(recorder, module=TwoOptimizers(), ckpt_path=tmp_path / "epoch=1.ckpt", **options)
    assert recorder.acted_at == [(2, 10), (3, 15)]


def test_two_of_one_class_keep_their_own_state(tmp_path):
    pair = [Recorder(EveryNSteps(4)), Recorder(AtEpochs([1]), log=Log(name="second"))]
    fitted(*pair, ModelCheckpoint(tmp_path, "last", save_on_train_epoch_end=True))
    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)["callbacks"]
    assert [saved[callback.state_key]["num_events"] for callback in pair] == [5, 1]


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("when", "message"),
    [
        (AtEpochs([6]), r"Recorder\(when=AtEpochs\(epochs=\(6,\)\)\) can never act: training ends after epoch 5"),
        (EveryNEpochs(7), "can never act"),
    ],
)
def test_a_schedule_that_can_never_be_due_is_an_error_before_training(when, message):
    module = PlainModule()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    with pytest.raises(MisconfigurationException, match=message):
        fitted(Recorder(when), module=module)
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())


def test_two_that_log_the_same_keys_are_an_error():
    with pytest.raises(MisconfigurationException, match=r"Two callbacks log as 'recorder': .*name=\"recorder_2\""):
        fitted(Recorder(EveryNSteps(4)), Recorder(AtEpochs([1])))


def test_two_monitors_or_regularisers_of_one_name_are_an_error():
    with pytest.raises(MisconfigurationException, match="Two callbacks log as 'plasticity'"):
        fitted(PlasticityMonitor(), PlasticityMonitor(where=Weights(include=["net.0"])))
    fitted(PlasticityMonitor(), PlasticityMonitor(where=Weights(include=["net.0"]), log=Log(name="stem")), max_epochs=1)


def test_a_fit_without_an_event_is_logged(caplog):
    with caplog.at_level("INFO"):
        fitted(Recorder(EveryNSteps(1000)), max_epochs=1)
        fitted(Recorder(EveryNSteps(1)), max_epochs=1)
    logged = [message for message in caplog.messages if "did not act" in message]
    assert logged == ["Recorder did not act in this fit: EveryNSteps(n=1000) was never due."]


def test_a_single_chunk_and_another_schedule_do_not_warn():
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*will not act.*")
        assert acted_at([AtNewData(), AtEpochs([1])], data=GrowingData((2,)), max_epochs=2) == [(1, 2)]


def test_when_must_be_a_schedule():
    class Nameless:
        def due(self, clock):
            return True

    with pytest.raises(TypeError, match="`when` must be a schedule such as AtNewData"):
        Recorder(when="sometimes")
    with pytest.raises(TypeError, match=r"got the class AtNewData: write AtNewData\(…\)"):
        Recorder(when=AtNewData)
    with pytest.raises(TypeError, match="got 5"):
        AnyOf([5])
    with pytest.raises(ValueError, match="`when` and `schedules` must be a list of at least one"):
        Recorder(when=[])
    with pytest.raises(TypeError, match="`when` needs a __repr__ that shows its settings"):
        Recorder(when=Nameless())


class OwnFSDP(FSDPStrategy):
    """Subclass of a user's project."""


class DeepSpeedStrategy(DDPStrategy):
    """Stand-in for Lightning's own, which requires DeepSpeed."""


def rejects(callback, strategy, match):
    sharded = trainer()
    sharded._accelerator_connector.strategy = strategy
    with pytest.raises(MisconfigurationException, match=match):
        callback.setup(sharded, PlainModule(), "fit")


@pytest.mark.parametrize("strategy", [FSDPStrategy, OwnFSDP, DeepSpeedStrategy])
@pytest.mark.parametrize("callback", [Recorder, PlasticityMonitor, FIRECallback])
def test_strategies_that_hide_the_weights_are_rejected(strategy, callback):
    base = "FSDPStrategy" if issubclass(strategy, FSDPStrategy) else "DeepSpeedStrategy"
    rejects(callback(), strategy(), f"{callback.__name__} cannot act under {base}, which keeps the weights in pieces")


ON_SHARDS = ["fire", "shrink_and_perturb", "full_reset", "optimizer_reset"]


@pytest.mark.parametrize("name", [name for name in ALL if name not in ON_SHARDS])
def test_what_needs_whole_weights_is_rejected_where_they_are_sharded(name):
    callback = callback_of(name)
    match = f"{callback.title} needs whole weights, which ModelParallelStrategy shards"
    rejects(callback, ModelParallelStrategy(), match)
    rejects(Recorder(), ModelParallelStrategy(), "Recorder needs whole weights, which ModelParallelStrategy shards")


def test_validation_alone_does_not_touch_the_callback():
    class Validates(PlainModule):
        def validation_step(self, batch, batch_idx):
            pass

    recorder = Recorder(AtEpochs([99]))
    trainer(recorder).validate(Validates(), DataLoader(dataset(), batch_size=6), verbose=False)
    assert recorder.acted_at == []


def test_other_callbacks_are_not_notified():
    class Other(Callback):
        clock = "a coincidence"

    recorder = Recorder()
    announce_new_data(trainer(Other(), Callback(), recorder))
    assert recorder.clock.state_dict()["announced"]


@pytest.mark.parametrize("interrupted", [False, True], ids=["error", "Ctrl-C"])
def test_an_event_whose_targets_cannot_be_synchronized_is_undone_and_an_interrupted_one_completed(interrupted):
    class Targets(PlainModule):
        def __init__(self):
            super().__init__()
            self.target, self.before = copy.deepcopy(self.net).requires_grad_(False), {}

        def sync_targets(self):
            if not interrupted:
                raise OSError("no target")
            signal.raise_signal(signal.SIGINT)
            self.target.load_state_dict(self.net.state_dict())

        def on_train_epoch_end(self):
            self.before = self.before if self.trainer.current_epoch else state_of(self)

    module, callback = Targets(), FIRECallback(AtEpochs([1]))
    with pytest.raises((OSError, KeyboardInterrupt, SystemExit)):
        fitted(callback, module=module, data=PlainData(), max_epochs=2)
    assert (callback.num_events, callback.clock.last_event) == ((1, 4) if interrupted else (0, None))
    after = module.state_dict()
    if interrupted:
        assert not torch.equal(module.before["net.0.weight"], after["net.0.weight"])
        assert all(torch.equal(value, after[f"target.{name}"]) for name, value in module.net.state_dict().items())
    else:
        assert all(torch.equal(value, after[name]) for name, value in module.before.items())


@pytest.mark.parametrize("make", [FIRECallback, PlasticityMonitor])
@pytest.mark.parametrize("log", [True, "fire", {"name": "fire"}, Log])
def test_what_to_log_must_be_a_log(make, log):
    with pytest.raises(TypeError, match=r"`log` must be a Log, such as Log\(name='fire_2'\), got "):
        make(log=log)
