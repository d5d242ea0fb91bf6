"""Which trainings a comparison is made of, and running them in several processes."""

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import yaml

from lightning_fire._lightning import tree_leaves
from lightning_fire.checkpoints.atomic import atomic_file
from lightning_fire.experiments.processes import Training, begin
from lightning_fire.experiments.progress import Progress, read_progress
from lightning_fire.recipe.recipe import Recipe

SHARED_START = "shared_start"
MARKER = "finished.json"
_SETTINGS = "run.yaml"
_PROGRESS = "progress.json"
_KEPT = "kept"


@dataclass(frozen=True)
class Run:
    """One training: a method with a seed.

    Attributes:
        method: Its name; `"vanilla"` is the recipe without one.
        seed: Seed of the initial weights, the order of batches and the split of the data.
        folder: Where its logs go.
        configs: Configuration as YAML texts, later ones override.
        start: The training on the first chunk of data that it goes on from; None if it begins by itself.
        checkpoint: Of such a training: what it leaves to those that go on.
        checkpoint_epochs: After how many epochs; None: at the end of the first chunk of data.
        overrides: Configuration of this run that comes on top of all other.
        resumed: A checkpoint that it goes on from, which is there when it begins; None if there is none.
        before: The training that has left that checkpoint.
        epochs_before: Epochs that the checkpoint has.
        products: Files that it leaves: without them it has not finished.
        saving: Arguments of the callback that writes them.
        kept: Of such a training: whether that stays when they have finished, for methods that are added later.
        branch: What tells apart runs of one method that go on from different checkpoints.
    """

    method: str
    seed: int
    folder: Path
    configs: tuple[str, ...]
    start: "Run | None" = field(default=None, compare=False)
    checkpoint: Path | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict, compare=False)
    resumed: Path | None = None
    before: "Run | None" = field(default=None, compare=False)
    epochs_before: int = 0
    products: tuple[Path, ...] = ()
    saving: Mapping[str, Any] = field(default_factory=dict, compare=False)
    branch: str = ""
    checkpoint_epochs: int | None = None
    kept: bool = field(default=False, compare=False)

    @property
    def name(self) -> str:
        """Short name for people."""
        return f"{self.branch} {self.method} seed {self.seed}".lstrip()

    @property
    def log(self) -> Path:
        """File with all that the training prints."""
        return self.folder / "log.txt"

    def progress(self) -> Progress | None:
        """Tell how far it is; None before its first epoch has ended."""
        return read_progress(self.folder / _PROGRESS)

    def settings(self, extra: dict[str, Any]) -> dict[str, Any]:
        """Return the configuration of this run that comes on top of its files, as for YAML."""
        logger = {"save_dir": str(self.folder.parent.parent), "name": self.method, "version": self.folder.name}
        callbacks = {"lightning_fire.experiments.progress.ProgressReport": {"path": str(self.folder / _PROGRESS)}}
        if self.checkpoint is not None:
            limit = {} if self.checkpoint_epochs is None else {"epochs": self.checkpoint_epochs}
            callbacks["lightning_fire.experiments.shared_start.SaveStart"] = {"path": str(self.checkpoint), **limit}
        if self.start is not None:
            callbacks["lightning_fire.experiments.shared_start.GoOnFromStart"] = {"path": str(self.start.checkpoint)}
        added = [{"class_path": name, "init_args": arguments} for name, arguments in callbacks.items()]
        if self.saving:
            added += [{"class_path": "lightning_fire.experiments.starts.SaveStarts", "init_args": dict(self.saving)}]
        trainer = {
            "default_root_dir": str(self.folder),
            "enable_progress_bar": False,
            "enable_checkpointing": False,
            "enable_model_summary": False,
            "callbacks+": added,
        }
        recipe = self.recipe(extra)
        own = {"seed_everything": self.seed, "trainer": trainer}
        if _takes_seed(recipe.get("data")):
            own["data"] = {"init_args": {"seed": self.seed}}
        settings = merged(merged(own, extra), self.overrides)
        ours = {"class_path": "lightning.pytorch.loggers.TensorBoardLogger", "init_args": logger}
        settings["trainer"]["logger"] = [ours, *_loggers(recipe.get("trainer"))]
        return settings

    def recipe(self, extra: Mapping[str, Any]) -> dict[str, Any]:
        """Return the configuration that people have written, with more of it on top."""
        result: dict[str, Any] = {}
        for layer in (*map(yaml.safe_load, self.configs), extra):
            result = merged(result, layer or {})
        return result


def plan(recipe: Recipe, methods: Sequence[str], seeds: Sequence[int], output: Path) -> list[Run]:
    """List the runs of a comparison, seed by seed; a method that is named twice, once."""
    layers = {method: recipe.layers(method) for method in methods}
    return [
        Run(method, seed, output / method / f"seed{seed}", configs)
        for seed in seeds
        for method, configs in layers.items()
    ]


def execute(
    runs: Sequence[Run], jobs: int, extra: dict[str, Any], on_progress: Callable[[dict[Run, Progress], list[Run]], None]
) -> dict[Run, str | None]:
    """Train all runs that have not finished before, each by the command line in a process of its own.

    What they go on from is trained before them, and its checkpoint removed when they all have finished, unless it is to
    be kept. A run that fails, or whose process is killed, is reported and does not stop the others.
    """
    outcome: dict[Run, str | None] = {run: None for run in runs}
    waiting = [run for run in runs if not is_finished(run, extra)]
    starts = list(dict.fromkeys(run.start for run in waiting if run.start is not None))
    waiting = [*(start for start in starts if not is_finished(start, extra)), *waiting]
    slots = list(range(jobs))
    active: dict[Run, _Active] = {}
    begun: list[Run] = []
    try:
        with _stoppable():
            while waiting or active:
                while slots and (run := _next(waiting, active)):
                    waiting.remove(run)
                    if run.start is not None and outcome.get(run.start):
                        run = replace(run, start=None)  # as a whole: it will say by itself what is wrong
                    try:
                        active[run] = _start(run, extra, slots[-1], jobs)
                    except OSError as error:
                        outcome[run] = _with_place(error, run.folder)
                        continue
                    begun.append(run)
                    slots.pop()
                time.sleep(0.2)
                for run, training in list(active.items()):
                    if training.process.poll() is not None:
                        outcome[run] = _close(run, training)
                        slots.append(training.slot)
                        del active[run]
                now = {run: run.progress() for run in begun}
                on_progress({run: progress for run, progress in now.items() if progress is not None}, list(active))
    finally:
        _stop([training.process for training in active.values()])
    _remove_starts({start.folder: start for start in [run.start for run in runs] if start is not None}, outcome)
    return {run: outcome[run] for run in runs}


def _remove_starts(starts: Mapping[Path, Run], outcome: Mapping[Run, str | None]) -> None:
    """Remove what starts leave, also of runs that had finished before, but not what some run may yet need."""
    for folder, start in starts.items():
        if start.kept and folder.is_dir():
            (folder / _KEPT).touch()  # later comparisons leave it, too
        needed = any(reason for run, reason in outcome.items() if run.start is not None and run.start.folder == folder)
        if not needed and not (folder / _KEPT).exists():
            (start.folder / MARKER).unlink(missing_ok=True)  # first: nobody shall go on from half of it
            for file in _replay_files(start.checkpoint):
                file.unlink(missing_ok=True)
            for file in start.folder.glob(f"{start.checkpoint.stem}.*"):
                file.unlink()


def _replay_files(checkpoint: Path) -> list[Path]:
    """Return the files of a replay buffer that a checkpoint names; none of what is no checkpoint."""
    try:
        content = torch.load(checkpoint, weights_only=True, mmap=True, map_location="cpu")
    except Exception:  # of any kind, as the file may be anything; cleaning up must not fail
        return []
    return [Path(leaf) for leaf in tree_leaves(content) if isinstance(leaf, str) and leaf.endswith(".replay")]


def _takes_seed(data: Any) -> bool:
    """Return whether the seed of a run is also that of its data: where the recipe gives one, or the data is ours."""
    if not isinstance(data, dict):
        return True  # the run itself will say what is wrong
    name, arguments = str(data.get("class_path")), data.get("init_args") or {}
    return "." not in name or name.startswith("lightning_fire.") or "seed" in arguments


def _loggers(trainer: Any) -> list[Any]:
    """Return the recipe's own loggers, which stay beside ours."""
    given = trainer.get("logger") if isinstance(trainer, dict) else None
    loggers = given if isinstance(given, list) else [given]
    named = [{"class_path": logger} if isinstance(logger, str) else logger for logger in loggers]
    return [logger for logger in named if isinstance(logger, dict)]


@dataclass
class _Active:
    """A training under way, and what the recipe was when it began."""

    process: Training
    slot: int
    fingerprint: str


def _next(waiting: Sequence[Run], active: Iterable[Run]) -> Run | None:
    """Return the first run that waits for no other."""
    ahead = {*waiting, *active}
    return next((run for run in waiting if run.start is None or run.start not in ahead), None)


@contextmanager
def _stoppable() -> Iterator[None]:
    """Turn signals that would end this process at once into an exception, so that its children are stopped as well."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    heeded = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]  # nohup
    former = {number: signal.signal(number, leave) for number in heeded}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _stop(processes: Sequence[Training]) -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def is_outdated(run: Run, extra: dict[str, Any]) -> bool:
    """Tell whether a run has finished before, with other settings."""
    return (run.folder / MARKER).is_file() and not is_finished(run, extra)


def default_jobs() -> int:
    """Return how many processes a machine takes: one for each GPU, or else one for each core."""
    return torch.cuda.device_count() or os.cpu_count() or 1


def _start(run: Run, extra: dict[str, Any], slot: int, jobs: int) -> _Active:
    fingerprint = _fingerprint(run, extra)
    _make_room(run)
    settings = run.settings(extra)
    if run.start is not None:
        settings["ckpt_path"] = str(run.start.checkpoint)
    if run.resumed is not None:
        settings["ckpt_path"] = str(run.resumed)
    layers = {_SETTINGS: yaml.safe_dump(settings)}  # the first to be written: it says whose folder this is
    layers |= {name: text for name, text in zip(("base.yaml", "method.yaml"), run.configs, strict=False)}
    for name, text in layers.items():
        (run.folder / name).write_text(text, encoding="utf-8")
    if run.start is not None:
        for events in run.start.folder.glob("events.out.tfevents.*"):
            shutil.copy(events, run.folder)  # TensorBoard shows the curves as one
    files = [word for name in (*list(layers)[1:], _SETTINGS) for word in ("-c", str(run.folder / name))]
    process = begin(["fit", *files], run.log, {**os.environ, **_share(slot, jobs)})
    return _Active(process, slot, fingerprint)


def _share(slot: int, jobs: int) -> dict[str, str]:
    """Return the environment that gives one of several processes its cores, unless the user has, and its GPU."""
    threads = os.environ.get("OMP_NUM_THREADS") or max(1, (os.cpu_count() or 1) // jobs)
    share = {"OMP_NUM_THREADS": str(threads)}
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(torch.cuda.device_count())))).split(",")
    if len(gpus) > 1:  # also a single run: on all of them it would be another training
        share["CUDA_VISIBLE_DEVICES"] = gpus[slot % len(gpus)]
    return share


def _close(run: Run, training: _Active) -> str | None:
    """Mark a run as finished, or tell what went wrong."""
    code, progress = training.process.returncode, run.progress()
    if code == 0 and progress is not None and progress.ended:
        if run.checkpoint is not None and not run.checkpoint.is_file():
            return "it ended before the first chunk did"
        if lacking := [product.name for product in run.products if not product.is_file()]:
            return f"it left no {', '.join(lacking)}: was val/loss never a number, or training shorter?"
        try:
            with atomic_file(run.folder / MARKER) as part:
                part.write_text(json.dumps({"settings": training.fingerprint}))
        except OSError as error:
            return _with_place(error, run.folder / MARKER)
        return None
    if code == 0:
        return "stopped from outside before its end"
    if code < 0:
        return f"killed by {signal.Signals(-code).name}; out of memory? Try fewer --jobs"
    reason = _last_words(run.log.read_text(errors="replace")) or f"exit code {code}"
    return reason if run.start is None else f"{reason} (it shared its first chunk; --no-shared-start trains it whole)"


def _with_place(error: OSError, place: Path) -> str:
    """Return what an error says, with the place if it does not tell one itself: a full disk does not."""
    return f"{place}: {error}" if error.errno is not None and error.filename is None else str(error)


def _last_words(log: str) -> str:
    """Return what a program said last: from its last "error:" on, or else its last line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [number for number, line in enumerate(lines) if re.match(r"(\S+: )?error: ", line)]
    return " ".join(lines[errors[-1] :][:8]) if errors else "".join(lines[-1:])


def is_finished(run: Run, extra: dict[str, Any]) -> bool:
    """Tell whether a run has finished before, with the recipe as it is now."""
    marker = run.folder / MARKER
    there = marker.is_file() and (run.checkpoint is None or run.checkpoint.is_file())
    there = there and all(product.is_file() for product in run.products)
    return there and json.loads(marker.read_text())["settings"] == _fingerprint(run, extra)


def merged(base: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Lay one nested configuration over another, key by key: what it does not name stays."""
    result = dict(base)
    for key, value in other.items():
        if isinstance(value, dict) and isinstance(base.get(key), dict):
            value = merged(base[key], value)
        elif key.endswith("+") and isinstance(value, list) and isinstance(base.get(key), list):
            value = [*base[key], *value]  # jsonargparse's way to append
        result[key] = value
    return result


def _fingerprint(run: Run, extra: dict[str, Any]) -> str:
    """Return what tells apart trainings that differ, wherever their folders are."""
    place = Path(run.method) / f"seed{run.seed}"
    run = replace(
        run,
        folder=Path("output", run.branch, place),
        start=None,
        checkpoint=run.checkpoint and Path("checkpoint"),
        saving={},  # another training it is not, and what it saves is looked for
    )
    parts = [*run.configs, yaml.safe_dump(run.settings(extra))]
    if run.before is not None:
        parts.append(_fingerprint(run.before, extra))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _make_room(run: Run) -> None:
    """Remove what an interrupted run left; refuse to remove anything else.

    The file that says whose folder it is stays to the end, and what says that the run is finished goes first: whenever
    this is interrupted, it can be done again.
    """
    if run.folder.exists() and any(run.folder.iterdir()):
        if not (run.folder / _SETTINGS).is_file():
            raise FileExistsError(
                f"{run.folder} holds files that are not of an earlier comparison; choose another --output"
            )
        (run.folder / MARKER).unlink(missing_ok=True)
        for path in run.folder.iterdir():
            if path.name == _SETTINGS:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    run.folder.mkdir(parents=True, exist_ok=True)
