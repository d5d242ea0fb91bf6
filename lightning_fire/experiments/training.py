"""One training of a comparison, in its own process: prepared, continued, marked as finished."""

import json
import math
import multiprocessing
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from torch import Tensor

from lightning_fire._lightning import draw_seeds_of_loaders, random_states, set_random_states, undeclared
from lightning_fire.contracts import HasChunkAt, chunk_of, implements, num_chunks_of
from lightning_fire.experiments.runs import MARKER, PARENT, PROGRESS, SETTINGS, START, Run, lock_folder
from lightning_fire.recipe.continued_logs import first_new_step
from lightning_fire.recipe.function import FunctionLog
from lightning_fire.recipe.recipe import BEST, as_yaml

SAVE_SECONDS = "LIGHTNING_FIRE_SAVE_SECONDS"
"""Environment variable: time between two checkpoints of a training that can be continued."""


def perform(run: Run, fit: Callable[[Sequence[str]], int | str | None]) -> int | str | None:
    """Train an unfinished run, from its last checkpoint if there is one; return an exit code or an error message.

    Two processes with the same folder run one after the other: the second finds the training finished.
    """
    run.folder.mkdir(parents=True, exist_ok=True)
    marker, begun, last = (run.folder / name for name in (MARKER, "begun.json", "last.ckpt"))
    with lock_folder(run.folder, until=math.inf):
        if run.is_finished():
            return None
        settings = run.settings()
        if last.is_file() and run.is_marked_in(begun):  # TensorBoard drops values that were logged after it
            content = torch.load(last, weights_only=True, mmap=True, map_location="cpu")
            settings["ckpt_path"] = str(last)
            settings["trainer"]["logger"][0]["dict_kwargs"] = {"purge_step": first_new_step(content)}
        else:
            clear_run(run.folder)
            os.truncate(run.log, 0)
            if run.start is not None:
                settings["ckpt_path"] = str(run.checkpoint)
                for events in [] if run.branch else run.start.folder.glob("events.out.tfevents.*"):
                    shutil.copy(events, run.folder)  # TensorBoard shows the curves as one
        files = {**dict(zip(("base.yaml", "method.yaml"), run.configs, strict=False)), SETTINGS: settings}
        for name, config in files.items():
            (run.folder / name).write_text(as_yaml(config), encoding="utf-8")
        begun.write_text(json.dumps({"settings": run.fingerprint()}))
        if code := fit([word for name in files for word in ("-c", str((run.folder / name).resolve()))]):
            return code
        if (progress := read_progress(run.folder)) is None or not progress.ended:
            return "stopped from outside before its end"
        if lacking := [file.name for file in run.products if not file.is_file()]:
            return f"it left no {', '.join(lacking)}: was val/loss never a number, or training shorter?"
        begun.replace(marker)
        last.unlink(missing_ok=True)
        if not run.products:
            remove_replay(run.folder)
        return None


def clear_run(folder: Path) -> None:
    """Remove the files of an interrupted run, except its log and settings, which mark the folder as one of a run.

    The marker of a finished run is removed first, so that this can be interrupted and repeated.
    """
    (folder / MARKER).unlink(missing_ok=True)
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name not in (SETTINGS, "log.txt"):
            path.unlink()


def remove_replay(folder: Path) -> None:
    """Remove the files of replay buffers once no run continues from them."""
    for file in folder.rglob("*.replay"):
        file.unlink()


class RunProgress(NamedTuple):
    """Progress of a run."""

    epoch: int  # epochs done
    epochs: int
    chunk: int  # of data, counted from 1
    chunks: int  # 0: unknown
    ended: bool = False  # its fit
    began: int = 0  # epochs done when this process began

    def write(self, path: Path) -> None:
        """Write a file atomically: a reader sees the old or the new content."""
        unfinished = path.with_suffix(".new")
        unfinished.write_text(json.dumps(self))
        unfinished.replace(path)


def read_progress(folder: Path) -> RunProgress | None:
    """Read the progress of a run; None before the end of its first epoch."""
    path = folder / PROGRESS
    return RunProgress(*json.loads(path.read_text())) if path.is_file() else None


def end_with_comparison() -> None:
    """End this process at once if the comparison, or the process that started this one, has been killed.

    A fork server lives as long as its forks; their `multiprocessing.parent_process()` is the comparison.
    """
    parent, comparison = os.environ.get(PARENT), multiprocessing.parent_process()
    orphan = os.name == "posix" and parent is not None and os.getppid() != int(parent)
    if orphan or (comparison is not None and not comparison.is_alive()):
        os._exit(1)  # without writing anything more to the folder


class RunLog(FunctionLog):
    """The log of a run that trains by a function; it ends with its comparison and counts as one epoch."""

    def __call__(self, key: str, value: float | Tensor, step: int) -> None:
        end_with_comparison()
        super().__call__(key, value, step)

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        super().__exit__(kind, *rest)
        if kind is None:
            RunProgress(1, 1, 1, 0, ended=True).write(self.folder / PROGRESS)


class ReportProgress(Checkpoint):
    """Writes a `RunProgress` at the end of each epoch and of the fit, and checkpoints to continue from.

    A fit stopped from outside is not marked as ended, even if its process exits with code 0. A training whose
    comparison has died ends at its next batch. As a `Checkpoint`, this callback runs last.

    Args:
        path: File of the progress. Checkpoints are in the same folder; `last.ckpt` of this training is written about
            once a minute.
        needs: Key that validation must log, or training if it starts with `train/`; empty: none.
        saves: Checkpoints that other trainings continue from, by file name, with the time of saving: a number of
            epochs; `best`: at the lowest `val/loss`; None: after the first chunk of data. `START` ends the training: it
            is saved after all hooks of the epoch's end, with the random states.
    """

    def __init__(self, path: str | Path, needs: str = "", saves: dict[str, int | str | None] | None = None):
        self.path, self.needs, self.saves = Path(path), needs, saves or {}
        self.began, self._saved, self._with_random_states = 0, time.monotonic(), False
        self._random_states: dict[str, Any] | None = None
        self._lowest, self._validated, self._ends = float("inf"), False, False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """End at once if the comparison has been killed."""
        if trainer.is_global_zero:
            end_with_comparison()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self.setup(trainer, pl_module, "fit")

    def state_dict(self) -> dict[str, Any]:
        """State: the lowest loss and, in a checkpoint that the same training continues from, the random states."""
        state = {"lowest": self._lowest} if BEST in self.saves.values() else {}
        if not self._with_random_states:
            return state
        states = random_states()
        algorithm, keys, *rest = states["numpy"]
        return {**state, "random": {**states, "numpy": (algorithm, keys.tolist(), *rest)}}  # loads without unpickling

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._random_states, self._lowest = state_dict.get("random"), state_dict.get("lowest", self._lowest)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restore RNG states, so that dropout etc. continue as in an uninterrupted run."""
        self.began, data = trainer.current_epoch, undeclared(trainer).datamodule
        if self._random_states:
            set_random_states(self._random_states)
            draw_seeds_of_loaders(trainer)
        if START in self.saves:
            if self.saves[START] is None and not implements(data, HasChunkAt):
                raise MisconfigurationException(
                    f"{type(data).__name__} has no chunk_at(epoch), which returns where its first chunk ends"
                )
            trainer.fit_loop.min_epochs = trainer.fit_loop.epoch_loop.min_steps = None  # of the whole training

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._validated = not trainer.sanity_checking
        if self._validated and not self.needs.startswith("train/"):
            self._require_metric(trainer, pl_module, "validation")

    def _require_metric(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Raise an error as soon as a stage has not logged the compared metric, unless a callback logs it when due."""
        there = trainer.callback_metrics
        by_callbacks = {getattr(one, "name", None) for one in undeclared(trainer).callbacks}
        if self.needs.partition("/")[0] in by_callbacks:
            return
        if self.needs and not {self.needs, f"{self.needs}_seen"} & set(there):
            raise MisconfigurationException(
                f"{stage} logs no {self.needs}, which is compared: let {type(pl_module).__name__} log it, or name"
                f" another with --metric and --mode; there are {', '.join(sorted(there)) or 'none'}"
            )

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        done = trainer.current_epoch + 1
        self._save_starts(trainer, done)
        if self.needs.startswith("train/"):
            self._require_metric(trainer, pl_module, "training")
        self._write(trainer, done, ended=False)
        due = time.monotonic() - self._saved >= float(os.environ.get(SAVE_SECONDS, 60))
        if trainer.strategy.broadcast(due):
            for logger in trainer.loggers:
                logger.save()
            self._save(trainer, "last.ckpt")
            self._saved = time.monotonic()

    def _save_starts(self, trainer: Trainer, done: int) -> None:
        """Save the checkpoints of `saves` due after this number of epochs; record whether this is the last."""
        best = False
        if BEST in self.saves.values() and self._validated:
            if "val/loss" not in trainer.callback_metrics:
                raise MisconfigurationException(
                    "the best checkpoint is that of the lowest val/loss, which is not logged"
                )
            best = (loss := float(trainer.callback_metrics["val/loss"])) < self._lowest
            self._lowest = min(self._lowest, loss)
        for name, when in self.saves.items():
            if name == START:
                at = undeclared(trainer).datamodule.chunk_at if when is None else None
                self._ends = at(done) != at(done - 1) if at else done >= int(when or 0)
                trainer.should_stop = trainer.should_stop or self._ends
            elif done == when or (when == BEST and best):
                trainer.save_checkpoint(self.path.with_name(name))
        self._validated = False

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._ends:
            self._save(trainer, START)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._write(trainer, trainer.current_epoch, ended=True)

    def _write(self, trainer: Trainer, epoch: int, ended: bool) -> None:
        """Write the progress."""
        if trainer.is_global_zero:
            data = undeclared(trainer).datamodule
            chunk, chunks = (chunk_of(data) or 0) + 1, num_chunks_of(data) or 0
            RunProgress(epoch, undeclared(trainer).max_epochs, chunk, chunks, ended, self.began).write(self.path)

    def _save(self, trainer: Trainer, name: str) -> None:
        """Save a checkpoint of this training atomically, with the random states."""
        path, self._with_random_states = self.path.with_name(name), True
        trainer.save_checkpoint(new := path.with_suffix(".new"))
        self._with_random_states = False
        if trainer.is_global_zero:
            if path.is_dir():  # for a model that is sharded over processes
                shutil.rmtree(path)
            new.replace(path)
