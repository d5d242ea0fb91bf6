"""Trainings that fail: nothing is half done or done twice, and the last checkpoint can be resumed."""

import contextlib
import copy
import errno
import signal
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from instantaneous_runs import Instantaneous
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.loggers.logger import DummyLogger
from methods_table import ALL, callback_of
from raising import RaisesAt
from small_training import PlainModule, assert_same_weights, dataset, fitted, state_of
from tiny_recipe import FIRE, tiny_recipe
from torch import nn

from lightning_fire import (
    DASH,
    AtEpochs,
    AtNewData,
    EveryNSteps,
    FIRECallback,
    FullReset,
    Log,
    OptimizerReset,
    PlasticityCallback,
    PlasticityInjection,
    PlasticityMonitor,
    ReDo,
    ShrinkAndPerturb,
    atomic,
)
from lightning_fire.cli import main
from lightning_fire.data import ChunkedDataModule, Continual
from lightning_fire.experiments import compare as compare_command

resource = pytest.importorskip("resource", reason="bounds the size of files on Unix")


def chunked(kind: type = ChunkedDataModule) -> ChunkedDataModule:
    """Three chunks of two epochs: new data after 6 and 18 of 34 steps."""
    return kind(dataset(48), dataset(6), Continual(num_chunks=3, epochs=2), batch_size=6)


def methods() -> list[Callback]:
    """Several that act at new data: one uses the data, and only the last one is idempotent."""
    return [
        FIRECallback(),
        PlasticityCallback(ShrinkAndPerturb(strength=0.1)),
        PlasticityCallback(DASH()),
        PlasticityCallback(OptimizerReset()),
    ]


class Validated(PlainModule):
    """With validation at the end of each epoch."""

    def validation_step(self, batch, batch_idx):
        return self.training_step(batch, batch_idx)


def run(*callbacks: Callback, kind: type = Validated, data=None, **options) -> PlainModule:
    """Train a module of a kind, from the same beginning each time."""
    torch.manual_seed(0)
    return fitted(*callbacks, data=data or chunked(), module=kind(), **options)


@pytest.fixture(scope="module")
def whole() -> PlainModule:
    """The module after a training in which nothing fails."""
    return run(*methods())


def assert_continues(checkpoint: Path, whole: PlainModule) -> None:
    """Resume a checkpoint to the end: each event happens once, and the weights are those without a failure."""
    own = methods()
    assert_same_weights(run(*own, ckpt_path=checkpoint), whole)
    assert [method.num_events for method in own] == [2] * len(own)


class SavesOnFailure(Callback):
    """Does what Lightning's ModelCheckpoint does with `save_on_exception=True`, which 2.5 does not have."""

    def __init__(self, folder):
        self.file = folder / "now.ckpt"

    def on_exception(self, trainer, pl_module, exception):
        trainer.save_checkpoint(self.file)


# --- an event that fails ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [OSError("out of order"), KeyboardInterrupt()], ids=["error", "Ctrl-C"])
@pytest.mark.parametrize("when", [AtNewData(), AtEpochs([2]), EveryNSteps(6)], ids=repr)
def test_an_event_that_fails_does_not_count(tmp_path, monkeypatch, when, error):
    """Also not for the checkpoint that is written because it fails."""

    def fails(*args):
        raise error

    undisturbed, resumed = FIRECallback(when), FIRECallback(when)
    expected = run(undisturbed)
    with monkeypatch.context() as patch, pytest.raises((OSError, KeyboardInterrupt, SystemExit)):
        patch.setattr(FIRECallback, "act", fails)
        run(FIRECallback(when), SavesOnFailure(tmp_path))
    assert_same_weights(run(resumed, ckpt_path=tmp_path / "now.ckpt"), expected)
    assert resumed.num_events == undisturbed.num_events


class WithTarget(Validated):
    """Has a copy of its network that follows each event, and nothing else."""

    def __init__(self):
        super().__init__()
        self.target = copy.deepcopy(self.net).requires_grad_(False)

    def sync_targets(self):
        self.target.load_state_dict(self.net.state_dict())


class InterruptedAt(RaisesAt):
    """Sends the signal of Ctrl-C at an operation."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        if self.count == self.number:
            signal.raise_signal(signal.SIGINT)
        return func(*args, **(kwargs or {}))


def stopped(build, mode: RaisesAt) -> Callback:
    """Return a method whose first event runs under a mode."""
    method = build()

    class Stopped(type(method)):
        title = method.title  # part of the key in the checkpoint

        def act(self, trainer, pl_module, clock):
            with mode if self.num_events == 0 else contextlib.nullcontext():
                return super().act(trainer, pl_module, clock)

    method.__class__ = Stopped
    return method


@pytest.mark.slow
@pytest.mark.parametrize(
    "build",
    [
        FIRECallback,
        lambda: PlasticityCallback(ShrinkAndPerturb(strength=0.3, fresh_seed=0, optimizer_state="all")),
        lambda: PlasticityCallback(PlasticityInjection(head="net.5")),
        lambda: PlasticityCallback(ReDo(threshold=0.5), AtNewData()),
    ],
    ids=["fire", "fresh", "injection", "redo"],
)
def test_an_event_that_is_stopped_in_the_middle_is_done_once(tmp_path, build):
    """Resumed, the run ends with the weights of an undisturbed one; an event waits with Ctrl-C until it is whole."""
    kind = Validated if build().name == "plasticity_injection" else WithTarget
    expected = run(build(), kind=kind)  # the first event computes what later ones remember
    run(stopped(build, counter := RaisesAt()), kind=kind)
    assert counter.count > 10
    for number in sorted({*range(1, counter.count, -(-counter.count // 7)), counter.count - 1, counter.count}):
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            run(stopped(build, InterruptedAt(number)), SavesOnFailure(tmp_path), kind=kind)
        resumed = build()
        assert_same_weights(run(resumed, kind=kind, ckpt_path=tmp_path / "now.ckpt"), expected)
        assert resumed.num_events == 2


class FullDisk(DummyLogger):
    """Cannot write the log of one method."""

    def __init__(self, name):
        super().__init__()
        self.event = f"{name}/event"

    def log_metrics(self, metrics, step=None):
        if self.event in metrics:
            raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("checkpoint", ["before", "now"])
@pytest.mark.parametrize("name", ["fire", "shrink_and_perturb", "dash"])
def test_an_event_whose_log_cannot_be_written_is_done_once(tmp_path, whole, name, checkpoint):
    """Resumed from the last checkpoint before it, or from the one that is written because of the failure."""
    before = ModelCheckpoint(tmp_path, "before", every_n_train_steps=5)
    with pytest.raises(OSError, match="No space left on device"):
        run(*methods(), before, SavesOnFailure(tmp_path), logger=FullDisk(name))
    assert_continues(tmp_path / f"{checkpoint}.ckpt", whole)


@pytest.mark.filterwarnings("ignore:You have overridden `on_before_batch_transfer`")
@pytest.mark.parametrize("hook", ["on_before_batch_transfer", "on_train_batch_start", "training_step"])
@pytest.mark.parametrize("step", [6, 8])
def test_a_batch_whose_training_fails_is_trained_on_after_a_resume(tmp_path, whole, hook, step):
    """The first one of an epoch and a later one: it was handed out before the checkpoint was written."""

    class Fails(Validated):
        pass

    def fails(self, *args, **options):
        if self.trainer.global_step == step:
            raise OSError("out of order")
        return getattr(super(Fails, self), hook)(*args, **options)

    setattr(Fails, hook, fails)
    with pytest.raises(OSError, match="out of order"):
        run(*methods(), SavesOnFailure(tmp_path), kind=Fails)
    own = methods()
    assert_same_weights(run(*own, ckpt_path=tmp_path / "now.ckpt"), whole)
    assert [method.num_events for method in own] == [2] * len(own)


# --- a full disk -----------------------------------------------------------------------------------------------------


class FillsTheDisk(Callback):
    """Lets no file grow beyond 2 kB from a step on."""

    def __init__(self, step):
        self.step = step

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.global_step == self.step:
            resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


@contextlib.contextmanager
def expect_a_full_disk() -> Iterator[None]:
    """Expect the error of a file that is too large, and take the bound away."""
    former = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with pytest.raises((OSError, ValueError)) as caught:  # Lightning's TensorBoardLogger makes a ValueError of it
            yield
        assert "File too large" in f"{caught.value} {caught.value.__cause__}"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, former)


def test_a_full_disk_leaves_the_last_checkpoint_whole(tmp_path, monkeypatch, whole):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # Lightning writes there first
    save = ModelCheckpoint(tmp_path / "checkpoints", "{step}", every_n_train_steps=1, save_last=True)
    with expect_a_full_disk():
        run(*methods(), save, FillsTheDisk(step=8))
    names = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert names == {"last.ckpt", "step=8.ckpt"}
    for name in names:
        assert torch.load(tmp_path / "checkpoints" / name, weights_only=True)["global_step"] == 8
        assert_continues(tmp_path / "checkpoints" / name, whole)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # of TensorBoard's writer
@pytest.mark.parametrize("kind", [TensorBoardLogger, CSVLogger])
def test_a_full_disk_under_the_logs_leaves_the_last_checkpoint_whole(tmp_path, whole, kind):
    save = ModelCheckpoint(tmp_path / "checkpoints", "last", every_n_train_steps=4)
    with expect_a_full_disk():
        run(*methods(), save, FillsTheDisk(step=5), logger=kind(tmp_path, name="log", version=""))
    assert_continues(tmp_path / "checkpoints" / "last.ckpt", whole)


@pytest.mark.parametrize("kind", [TensorBoardLogger, CSVLogger])
def test_a_file_at_the_path_of_the_log_folder_is_named_before_training(tmp_path, kind):
    (tmp_path / "here").write_text("a file")
    begun = []

    class Begins(Callback):
        def on_train_start(self, trainer, pl_module):
            begun.append(trainer)

    with pytest.raises(OSError, match=str(tmp_path / "here")):
        run(*methods(), Begins(), logger=kind(tmp_path / "here"))
    assert not begun


NO_SPACE = OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def compare(tmp_path, monkeypatch):
    """Return the command, with trainings that take no time."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(compare_command, "engine_for", Instantaneous)
    Instantaneous.write_logs(tmp_path / "logs", ["vanilla", "fire"])
    recipe = tiny_recipe(tmp_path, {"fire": FIRE})
    words = ["compare", str(recipe), "--methods", "vanilla", "fire", "--seeds", "1", "--output", "out"]
    return partial(main, words)


@contextlib.contextmanager
def disk_full_for(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let one file reach no disk."""
    flush = atomic.flush

    def flush_others(path):
        if path.name.startswith(f".{name}."):
            raise NO_SPACE
        flush(path)

    with monkeypatch.context() as patch:
        patch.setattr(atomic, "flush", flush_others)
        yield


@pytest.mark.parametrize("kept", [False, True])
def test_what_a_killed_comparison_left_of_finished_starts_is_removed_by_the_next(compare, tmp_path, kept):
    compare()
    place = tmp_path / "out/shared_start/seed0"
    log = sorted(place.iterdir())
    (place / "replay").mkdir()
    file = place / "replay" / "a.replay"
    file.touch()
    torch.save({"parts": [(0, 1, str(file))]}, place / "start.ckpt")
    main([*compare.args[0], *(["--keep-starts"] if kept else [])])
    assert (place / "start.ckpt").exists() == kept
    assert file.exists() == kept
    assert set(log) <= set(place.iterdir())
    main(compare.args[0])  # a start that was kept stays
    assert (place / "start.ckpt").exists() == kept


def test_a_comparison_whose_folder_is_a_file_is_an_error(compare, tmp_path, capsys):
    (tmp_path / "out").write_text("a file")
    with pytest.raises(SystemExit):
        compare()
    assert "error: --output out is a file: name a folder" in capsys.readouterr().err
    assert (tmp_path / "out").read_text() == "a file"


@pytest.mark.parametrize("name", ["table.txt", "results.csv", "comparison.png"])
def test_results_that_cannot_be_written_stay_as_they_were(compare, tmp_path, monkeypatch, name):
    compare()
    (tmp_path / "out" / name).write_text("of old")
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir() if path.is_file()}
    match = f"out/{name} cannot be written: No space left on device. The same command writes it, without training"
    with disk_full_for(name, monkeypatch), pytest.raises(SystemExit, match=match):
        compare()
    assert (tmp_path / "out" / name).read_text() == "of old"
    assert {path.name for path in (tmp_path / "out").iterdir() if path.is_file()} == set(before)
    compare()
    assert (tmp_path / "out" / name).read_bytes() != b"of old"


# --- NaN -------------------------------------------------------------------------------------------------------------


class Diverges(Validated):
    """Has a loss of NaN in the fifth step, in the first chunk."""

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * (float("nan") if self.trainer.global_step == 4 else 1)


class Snapshot(Callback):
    """Holds the state of the module, and the checkpoint on the disk, as they were at the end of the last epoch."""

    def __init__(self, file):
        self.file = file

    def on_train_epoch_end(self, trainer, pl_module):
        self.state = state_of(pl_module)
        self.bytes = self.file.read_bytes() if self.file.exists() else b""


@pytest.mark.parametrize(
    ("method", "weight"),
    [
        (FIRECallback, "net.0.weight"),
        (lambda: PlasticityCallback(ShrinkAndPerturb()), "net.0.weight"),
        (lambda: PlasticityCallback(ShrinkAndPerturb(strength=1.0)), "net.0.weight"),
        (lambda: PlasticityCallback(ShrinkAndPerturb(fresh_seed=0), log=Log(weights=False)), "net.0.weight"),
        (lambda: PlasticityCallback(DASH()), "net.0.weight"),
        (lambda: PlasticityCallback(PlasticityInjection(head="net.5")), "net.5.weight"),
    ],
)
def test_methods_that_keep_part_of_a_network_reject_one_that_has_diverged(tmp_path, method, weight):
    """Nothing changes in memory or on the disk; training resumes from the checkpoint before the NaN."""
    save = ModelCheckpoint(tmp_path, "last", every_n_train_steps=4)
    snapshot, failing = Snapshot(tmp_path / "last.ckpt"), method()
    seen = []

    class Keeps(Diverges):
        def on_train_start(self):
            seen.append(self)

    with pytest.raises(ValueError, match=f"NaN or Inf in .*{weight}.*: training has diverged; no weight has been"):
        run(failing, save, snapshot, kind=Keeps)
    for name, tensor in seen[0].state_dict().items():
        torch.testing.assert_close(tensor, snapshot.state[name], rtol=0, atol=0, equal_nan=True)
    assert failing.num_events == 0
    assert (tmp_path / "last.ckpt").read_bytes() == snapshot.bytes
    resumed, undisturbed = method(), method()
    assert_same_weights(run(resumed, ckpt_path=tmp_path / "last.ckpt"), run(undisturbed))
    assert resumed.num_events == undisturbed.num_events == 2


@pytest.mark.parametrize("optimizer", ["touched", "all", "keep"])
@pytest.mark.parametrize("fresh_seed", [None, 0], ids=["initial", "fresh"])
def test_a_full_reset_repairs_a_network_that_has_diverged(fresh_seed, optimizer):
    """Only if the moments of Adam, which are NaN as well, are dropped."""
    method = PlasticityCallback(FullReset(fresh_seed=fresh_seed, optimizer_state=optimizer))
    module = run(method, *([PlasticityCallback(OptimizerReset())] if optimizer == "keep" else []), kind=Diverges)
    assert method.num_events == 2
    assert all(tensor.isfinite().all() for tensor in module.state_dict().values())
    if optimizer == "keep":
        module = run(PlasticityCallback(FullReset(fresh_seed=fresh_seed, optimizer_state=optimizer)), kind=Diverges)
        assert not any(parameter.isfinite().all() for parameter in module.parameters())


STOPPING = {"fire", "shrink_and_perturb", "shrink_and_perturb_fresh", "dash", "plasticity_injection"}
REPAIRING = {"full_reset", "full_reset_fresh", "hare_and_tortoise"}


def monitor() -> PlasticityMonitor:
    return PlasticityMonitor(log=Log(curvature=True), data_every_n_steps=1)


@pytest.mark.parametrize("name", [*(name for name in ALL if name not in STOPPING | REPAIRING), "monitor"])
def test_the_others_do_not_stop_a_training_that_has_diverged(name):
    module = run(monitor() if name == "monitor" else callback_of(name), kind=Diverges)
    assert module.trainer.global_step == 34
    assert not module.net[5].bias.isfinite().any()


def test_redo_resets_no_unit_of_a_network_that_has_diverged():
    """NaN is not 0."""

    class Counts(PlasticityCallback):
        def act(self, trainer, pl_module, clock):
            self.values = super().act(trainer, pl_module, clock)
            return self.values

    method = Counts(ReDo(threshold=0.5))
    run(method, kind=Diverges)
    assert method.num_events == 5
    assert method.values["redo/units"] == 0


class LeavesOut(Validated):
    """Gets inputs of NaN in the fifth step and skips them, as many projects do; without normalization."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.Identity(), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = super().training_step((x * (float("nan") if self.trainer.global_step == 4 else 1), y), batch_idx)
        return loss if loss.isfinite() else None


@pytest.mark.filterwarnings("ignore:`training_step` returned `None`")
@pytest.mark.filterwarnings("ignore:LeavesOut has no normalization layer")
@pytest.mark.parametrize("name", [*ALL, "monitor"])
def test_a_batch_that_training_skips_has_no_effect_on_methods(name):
    """Methods that observe each batch have observed it too."""
    module = run(monitor() if name == "monitor" else callback_of(name), kind=LeavesOut)
    assert all(tensor.isfinite().all() for tensor in module.state_dict().values())


class SpoiltData(ChunkedDataModule):
    """Has inputs of NaN in its second chunk."""

    def on_after_batch_transfer(self, batch, dataloader_idx):
        x, y = batch
        return [x * (float("nan") if self.chunk == 1 else 1), y]


def test_dash_rejects_directions_that_are_not_finite():
    """The network itself is still finite."""
    snapshots, method = [], PlasticityCallback(DASH())

    class Keeps(Validated):
        def on_train_epoch_end(self):
            snapshots.append((self, state_of(self)))

    with pytest.raises(ValueError, match=r"NaN or Inf in the gradients on the new data, .* no weight has been changed"):
        run(method, kind=Keeps, data=chunked(SpoiltData))
    module, before = snapshots[-1]
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert method.num_events == 0


# --- data that fails -------------------------------------------------------------------------------------------------


class WrongError(Exception):
    """Error of a user's own code."""


class Flawed(ChunkedDataModule):
    """Raises an error of its own in one hook, once the second chunk starts."""

    place = error = None

    def raise_at(self, place):
        if place == self.place and self.chunk == 1:
            raise self.error

    def setup(self, stage=None):
        if self.place == "setup":
            raise self.error
        super().setup(stage)

    def train_dataloader(self):
        self.raise_at("train_dataloader")
        return super().train_dataloader()

    def on_after_batch_transfer(self, batch, dataloader_idx):
        self.raise_at("first batch")
        return super().on_after_batch_transfer(batch, dataloader_idx)


@pytest.mark.filterwarnings("ignore:.*/lambda_max_before is not logged. WrongError. first batch")
@pytest.mark.parametrize("chosen", [["fire"], ["fire", "shrink_and_perturb", "dash", "optimizer_reset"]], ids=len)
@pytest.mark.parametrize("checkpoint", ["last", "now"])
def test_new_data_that_fails_raises_its_own_error_and_leaves_the_checkpoint(tmp_path, chosen, checkpoint):
    """After the fix the run continues, and the event happens once."""

    def build():
        return [method for method in methods() if method.name in chosen]

    expected = run(*build())
    file, content = None, b""
    for place in ("train_dataloader", "first batch", "setup", "first batch", "train_dataloader"):
        data = chunked(Flawed)
        data.place, data.error = place, WrongError(place)
        save = ModelCheckpoint(tmp_path, "last", every_n_train_steps=3, enable_version_counter=False)
        with pytest.raises(WrongError) as caught:
            run(*build(), save, SavesOnFailure(tmp_path), data=data, ckpt_path=file)
        assert caught.value is data.error
        assert (tmp_path / "last.ckpt").read_bytes() == (content or (tmp_path / "last.ckpt").read_bytes())
        content, file = (tmp_path / "last.ckpt").read_bytes(), tmp_path / f"{checkpoint}.ckpt"
    own = build()
    assert_same_weights(run(*own, ckpt_path=file), expected)
    assert [method.num_events for method in own] == [2] * len(own)
