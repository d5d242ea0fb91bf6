"""Runs of a comparison: the trainings it consists of, the configuration of each, and whether it has finished."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from lightning_fire.recipe.recipe import VANILLA, Recipe

SETTINGS = "run.yaml"
MARKER = "finished.json"
PROGRESS = "progress.json"
PARENT = "LIGHTNING_FIRE_PARENT"
"""Environment variable with the number of the process that a training is started by, and ends with."""
_CALLBACKS = "lightning_fire.experiments.training."


@dataclass(frozen=True)
class Run:
    """One training: a method with a seed.

    Attributes:
        method: Its name; `"vanilla"` is the recipe without one.
        seed: Seed of the initial weights, the order of batches and the split of the data.
        folder: Where its logs go.
        configs: Configuration as YAML texts, later ones override.
        start: The training that it continues from; None if it begins by itself.
        checkpoint: The file that it continues from.
        branch: Name of that checkpoint in a recipe with `starts`, whose second phase this is; or else empty.
        later_epochs: Of such a run: epochs of the phases after the first.
        overrides: Configuration of this run that comes on top of all other.
        saves: Of a training that others continue from: the callback that saves the checkpoints, and its arguments.
        products: The files that it leaves: without them it has not finished.
        kept: Whether these stay when the others have finished, for methods that are added later.
        needs: Key that its validation has to log; empty: unknown.
    """

    method: str
    seed: int
    folder: Path
    configs: tuple[str, ...]
    start: "Run | None" = field(default=None, compare=False)
    checkpoint: Path | None = field(default=None, compare=False)
    branch: str = ""
    later_epochs: tuple[int, ...] = ()
    overrides: Mapping[str, Any] = field(default_factory=dict, compare=False)
    saves: Mapping[str, Any] = field(default_factory=dict, compare=False)
    products: tuple[Path, ...] = ()
    kept: bool = field(default=False, compare=False)
    needs: str = field(default="", compare=False)

    @property
    def name(self) -> str:
        """Short name in messages."""
        return f"{self.branch} {self.method} seed {self.seed}".lstrip()

    @property
    def log(self) -> Path:
        """File with all that the training prints."""
        return self.folder / "log.txt"

    def recipe(self, extra: Mapping[str, Any]) -> dict[str, Any]:
        """Return the configuration that people have written, with more of it on top."""
        result: dict[str, Any] = {}
        for layer in (*map(yaml.safe_load, self.configs), extra):
            result = merged(result, layer or {})
        return result

    def settings(self, extra: Mapping[str, Any]) -> dict[str, Any]:
        """Return the configuration of this run that comes on top of its files, as for YAML."""
        needs = {"needs": self.needs} if self.needs else {}
        callbacks = [_callback("Report", path=str(self.folder / PROGRESS), **needs)]
        callbacks += [_callback(kind, **arguments) for kind, arguments in self.saves.items()]
        recipe, own = self.recipe(extra), {"seed_everything": self.seed}
        if _takes_seed(recipe.get("data")):
            own["data"] = {"init_args": {"seed": self.seed}}
        own["trainer"] = {
            "default_root_dir": str(self.folder),
            "enable_progress_bar": False,
            "enable_checkpointing": True,  # no other than `Report`
            "enable_model_summary": False,
            "callbacks+": callbacks,
        }
        settings = merged(merged(own, extra), self.overrides)
        if self.later_epochs:
            done, _ = epochs_and_steps_of(self.checkpoint)
            settings = merged(settings, {"data": {"init_args": {"epochs": [done, *self.later_epochs]}}})
        logger = {"save_dir": str(self.folder.parent.parent), "name": self.method, "version": self.folder.name}
        ours = {"class_path": "lightning.pytorch.loggers.TensorBoardLogger", "init_args": logger}
        settings["trainer"]["logger"] = [ours, *_loggers(recipe.get("trainer"), self.name)]
        return settings

    def fingerprint(self, extra: Mapping[str, Any]) -> str:
        """Return a hash that distinguishes different trainings, independent of their folders.

        A shared first part and saved checkpoints do not change it; where the training ends does.
        """
        folder = Path("output", self.branch, self.method, f"seed{self.seed}")
        saves = {kind: {**args, "path": "start.ckpt"} for kind, args in self.saves.items() if kind == "SaveStart"}
        parts = [*self.configs, yaml.safe_dump(replace(self, folder=folder, saves=saves, needs="").settings(extra))]
        if self.branch:
            parts.append(self.start.fingerprint(extra))
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def is_finished(self, extra: Mapping[str, Any]) -> bool:
        """Return whether it has finished before, with the recipe as it is now."""
        marker, needed = self.folder / MARKER, [*self.products, *([self.checkpoint] if self.branch else [])]
        if not marker.is_file() or not all(file.is_file() for file in needed):
            return False
        return json.loads(marker.read_text())["settings"] == self.fingerprint(extra)


def plan(recipe: Recipe, methods: Sequence[str], seeds: Sequence[int], output: Path) -> list[Run]:
    """List the runs of a comparison, seed by seed; a method that is named twice, once."""
    layers = {method: recipe.layers(method) for method in methods}
    return [
        Run(method, seed, output / method / f"seed{seed}", configs)
        for seed in seeds
        for method, configs in layers.items()
    ]


def reference_of(name: str | None, methods: Sequence[str]) -> str:
    """Return the method that the others are compared with."""
    reference = name or (VANILLA if VANILLA in methods else methods[0])
    if reference not in methods:
        raise ValueError(f"--reference {reference} is none of the methods: {' '.join(methods)}")
    return reference


def epochs_and_steps_of(checkpoint: str | os.PathLike) -> tuple[int, int]:
    """Return after how many epochs and optimizer steps a checkpoint was written."""
    import torch

    content = torch.load(checkpoint, weights_only=True, mmap=True, map_location="cpu")
    return content["epoch"] + 1, content["global_step"]


@contextmanager
def at_work_in(folder: Path, alone: bool = True, wait: bool = False) -> Iterator[None]:
    """Context manager: hold a lock on a folder, where the system has locks.

    Args:
        folder: To lock.
        alone: Exclude all others; else only those that are alone.
        wait: Wait until the folder is free.

    Raises:
        SystemExit: Another process is at work in the folder, and `wait` is False.
    """
    try:
        import fcntl

        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    except (ImportError, OSError):  # Windows has no such locks; the runs report errors of the folder
        yield
        return
    try:
        try:
            fcntl.flock(handle, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise SystemExit(f"another comparison is at work in {folder}: wait, or choose another --output") from None
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(handle)


def merged(base: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Merge one nested configuration over another, key by key; keys that it lacks stay."""
    result = dict(base)
    for key, value in other.items():
        if isinstance(value, dict) and isinstance(base.get(key), dict):
            value = merged(base[key], value)
        elif key.endswith("+") and isinstance(value, list) and isinstance(base.get(key), list):
            value = [*base[key], *value]  # jsonargparse's way to append
        result[key] = value
    return result


def _callback(name: str, **arguments: Any) -> dict[str, Any]:
    return {"class_path": _CALLBACKS + name, "init_args": arguments}


def _takes_seed(data: Any) -> bool:
    """Return whether the seed of a run is also that of its data: where the recipe gives one, or the data is ours."""
    if not isinstance(data, dict):
        return True  # the run itself reports the error
    name, arguments = str(data.get("class_path")), data.get("init_args") or {}
    return "." not in name or name.startswith("lightning_fire.") or "seed" in arguments


def _loggers(trainer: Any, name: str) -> list[Any]:
    """Return the recipe's own loggers, which are added to ours; a missing run name is set to that of this run."""
    given = trainer.get("logger") if isinstance(trainer, dict) else None
    keys = {"WandbLogger": "name", "MLFlowLogger": "run_name"}
    loggers = []
    for logger in given if isinstance(given, list) else [given]:
        spec = {"class_path": logger} if isinstance(logger, str) else logger
        if isinstance(spec, dict):
            key = keys.get(str(spec.get("class_path")).rpartition(".")[2])
            loggers.append(merged({"init_args": {key: name}}, spec) if key else spec)
    return loggers
