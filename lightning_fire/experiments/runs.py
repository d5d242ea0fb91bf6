"""Runs of a comparison: the trainings it consists of, the configuration of each, and whether it has finished."""

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from pathlib import Path
from typing import Any

import yaml

from lightning_fire.experiments.source_of import own_code
from lightning_fire.recipe.recipe import VANILLA, Recipe

SETTINGS = "run.yaml"
MARKER = "finished.json"
PROGRESS = "progress.json"
START = "start.ckpt"
PARENT = "LIGHTNING_FIRE_PARENT"
"""Environment variable: id of the process that starts a training; the training ends with it."""


@dataclass(frozen=True)
class Run:
    """One training: a method with a seed.

    Attributes:
        method: Its name; `"vanilla"` is the recipe without one.
        seed: Seed of the initial weights, the order of batches and the split of the data.
        folder: Where its logs go.
        configs: Configuration files of the recipe and of the method; later ones override.
        extra: Further configuration that overrides these, as by `--set`.
        start: The training that it continues from; None if it starts on its own.
        file: Name of the checkpoint of `start` that it continues from.
        branch: Name of that checkpoint in a recipe with `starts`, if this is its second phase; otherwise empty.
        saves: Names of the checkpoints that others continue from, with the time of saving: a number of epochs; `best`:
            at the lowest `val/loss`; None: after the first chunk. `START` ends the training.
        kept: Whether these are kept when the others have finished, for methods added later.
        needs: Key that its validation, or its function, must log; empty: unknown.
    """

    method: str
    seed: int
    folder: Path
    configs: Sequence[Mapping[str, Any]] = field(compare=False)
    extra: Mapping[str, Any] = field(default_factory=dict, compare=False)
    start: "Run | None" = field(default=None, compare=False)
    file: str = START
    branch: str = ""
    saves: Mapping[str, int | str | None] = field(default_factory=dict, compare=False)
    kept: bool = field(default=False, compare=False)
    needs: str = field(default="", compare=False)

    @property
    def name(self) -> str:
        """Short name in messages."""
        return f"{self.branch} {self.method} seed {self.seed}".lstrip()

    @property
    def log(self) -> Path:
        """File with the output of the training."""
        return self.folder / "log.txt"

    @property
    def products(self) -> list[Path]:
        """Files that it writes: without them it has not finished."""
        return [self.folder / name for name in self.saves]

    @property
    def checkpoint(self) -> Path | None:
        """File that it continues from."""
        return None if self.start is None else self.start.folder / self.file

    def recipe(self) -> dict[str, Any]:
        """Return the user's configuration."""
        return reduce(merged, (*self.configs, self.extra), {})

    @cached_property
    def code(self) -> str:
        """Source of the user's own code that the configuration names.

        It goes to the process that trains, which must mark what was planned here.
        """
        return own_code(self.recipe())

    def settings(self) -> dict[str, Any]:
        """Return the configuration of this run that overrides those of recipe and method."""
        recipe = self.recipe()
        if "train" in recipe:
            log = {
                "class_path": "lightning_fire.experiments.training.RunLog",
                "init_args": {"folder": str(self.folder)},
            }
            train = {"log": log} | ({"metric": self.needs} if self.needs else {})
            return merged({"seed_everything": self.seed, "train": train}, self.extra)
        parts: list[Any] = [recipe.get("data"), recipe.get("trainer")]
        data, trainer = (part if isinstance(part, dict) else {} for part in parts)  # of others the run reports an error
        report: dict[str, Any] = {"path": str(self.folder / PROGRESS), "needs": self.needs}
        report |= {"saves": dict(self.saves)} if self.saves else {}
        own: dict[str, Any] = {"seed_everything": self.seed}
        name, given = str(data.get("class_path", "")), data.get("init_args") or {}
        if "." not in name or name.startswith("lightning_fire.") or "seed" in given:  # its data takes a seed
            own["data"] = {"init_args": {"seed": self.seed}}
        own["trainer"] = {
            "default_root_dir": str(self.folder),
            "enable_progress_bar": False,
            "enable_checkpointing": True,  # only `ReportProgress`
            "enable_model_summary": False,
            "callbacks+": [{"class_path": "lightning_fire.experiments.training.ReportProgress", "init_args": report}],
        }
        settings = merged(own, self.extra)
        if self.branch and self.checkpoint:
            done, _ = epochs_and_steps_of(self.checkpoint)
            _, epochs = phases_and_epochs(recipe)
            settings = merged(settings, {"data": {"init_args": {"epochs": [done, *epochs[1:]]}}})
        logger = {"save_dir": str(self.folder.parent.parent), "name": self.method, "version": self.folder.name}
        ours = {"class_path": "lightning.pytorch.loggers.TensorBoardLogger", "init_args": logger}
        settings["trainer"]["logger"], loggers = [ours], trainer.get("logger")
        for one in loggers if isinstance(loggers, list) else [loggers]:  # the recipe's own are kept
            spec = {"class_path": one} if isinstance(one, str) else one
            if isinstance(spec, dict):
                names = {"WandbLogger": "name", "MLFlowLogger": "run_name"}
                key = names.get(str(spec.get("class_path")).rpartition(".")[2])
                settings["trainer"]["logger"].append(merged({"init_args": {key: self.name}}, spec) if key else spec)
        return settings

    def has_new_code(self) -> bool:
        """Return whether the user's code has changed since `code` was read."""
        return bool(self.code) and own_code(self.recipe()) != self.code

    def fingerprint(self) -> str:
        """Return a hash that distinguishes different trainings, independent of their folders.

        It does not depend on a shared first part or on saved checkpoints, but on the end of the training.
        """
        folder = Path("output", self.branch, self.method, f"seed{self.seed}")
        saves = {START: self.saves[START]} if START in self.saves else {}
        own = replace(self, folder=folder, saves=saves, needs="").settings()
        texts = [*map(yaml.safe_dump, (*self.configs, own)), *filter(None, [self.code])]
        texts += [self.start.fingerprint()] if self.branch and self.start else []
        return hashlib.sha256("\n".join(texts).encode()).hexdigest()

    def is_finished(self) -> bool:
        """Return whether it has finished with the current recipe and code."""
        needed = [*self.products, *([self.checkpoint] if self.branch and self.checkpoint else [])]
        return all(file.is_file() for file in needed) and self.is_marked_in(self.folder / MARKER)

    def is_outdated(self) -> bool:
        """Return whether it has finished, with other settings or code than the current ones."""
        return (self.folder / MARKER).is_file() and not self.is_finished()

    def is_marked_in(self, path: Path) -> bool:
        """Return whether a file was written by this training with the current recipe and code."""
        try:
            return bool(json.loads(path.read_text())["settings"] == self.fingerprint())
        except (OSError, ValueError):  # a full disk leaves a partial file
            return False


def plan(
    recipe: Recipe, methods: Sequence[str], seeds: Sequence[int], output: Path, extra: Mapping[str, Any] | None = None
) -> list[Run]:
    """List the runs of a comparison, seed by seed, without duplicate methods."""
    layers = {method: recipe.layers(method) for method in methods}
    return [
        Run(method, seed, output / method / f"seed{seed}", configs, extra or {})
        for seed in seeds
        for method, configs in layers.items()
    ]


def reference_of(name: str | None, methods: Sequence[str]) -> str:
    """Return the method that the others are compared with."""
    reference = name or (VANILLA if VANILLA in methods else methods[0])
    if reference not in methods:
        raise ValueError(f"--reference {reference} is not one of the methods: {' '.join(methods)}")
    return reference


def phases_and_epochs(config: Mapping[str, Any]) -> tuple[list[Any], list[int]]:
    """Return the phases of the data of a recipe with `starts`, and the epochs of each."""
    data = config.get("data")
    arguments = data.get("init_args") if isinstance(data, Mapping) else None
    phases, epochs = (arguments.get(key) if isinstance(arguments, Mapping) else None for key in ("phases", "epochs"))
    if not isinstance(phases, list) or len(phases) < 2:
        raise ValueError("`starts` need data with two `phases` or more")
    epochs = [epochs] * len(phases) if isinstance(epochs, int) else epochs
    if not isinstance(epochs, list) or len(epochs) != len(phases) or not all(isinstance(n, int) for n in epochs):
        raise ValueError(f"`epochs` of the data must be a number for each phase, got {epochs}")
    return phases, epochs


def epochs_and_steps_of(checkpoint: Path) -> tuple[int, int]:
    """Return the numbers of epochs and optimizer steps of a checkpoint."""
    import torch

    content = torch.load(checkpoint, weights_only=True, mmap=True, map_location="cpu")
    return content["epoch"] + 1, content["global_step"]


@contextmanager
def lock_folder(folder: Path, alone: bool = True, until: float = 0.0) -> Iterator[None]:
    """Context manager: hold a lock on a folder, if the system has locks.

    The lock is exclusive if `alone`, otherwise shared. If the folder is locked until this time of `time.monotonic`, it
    raises a SystemExit.
    """
    try:
        import fcntl

        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    except (ImportError, OSError):  # Windows has no such locks; the runs report errors of the folder
        yield
        return
    lock, told = fcntl.LOCK_EX if alone else fcntl.LOCK_SH, False
    try:
        try:
            while True:
                try:
                    fcntl.flock(handle, lock | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= until:
                        reason = f"another comparison is at work in {folder}: wait, or choose another --output"
                        raise SystemExit(reason) from None
                    if not told:
                        print(f"waiting for another command at work in {folder}", flush=True)
                    told = True
                    time.sleep(0.2)
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(handle)


def merged(base: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Merge a nested configuration into another, key by key; other keys are kept."""
    result = dict(base)
    for key, value in other.items():
        if isinstance(value, dict) and isinstance(base.get(key), dict):
            value = merged(base[key], value)
        elif key.endswith("+") and isinstance(value, list) and isinstance(base.get(key), list):
            value = [*base[key], *value]  # jsonargparse's way to append
        result[key] = value
    return result
