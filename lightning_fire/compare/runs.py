"""Which trainings a comparison is made of, and running them in several processes."""

import contextlib
import hashlib
import json
import multiprocessing
import os
import shutil
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

_MARKER = "finished.json"
_SETTINGS = "run.yaml"


@dataclass(frozen=True)
class Run:
    """One training: a method with a seed.

    Attributes:
        method: Name of the overlay, or `"vanilla"` for the base alone.
        seed: Seed of the initial weights, the order of batches and the split of the data.
        folder: Where its logs go.
        configs: YAML files, later ones override.
    """

    method: str
    seed: int
    folder: Path
    configs: tuple[Path, ...]

    @property
    def name(self) -> str:
        """Short name for people."""
        return f"{self.method} seed {self.seed}"

    def settings(self, extra: dict[str, Any]) -> dict[str, Any]:
        """Return the configuration of this run that comes on top of its files, as for YAML.

        Args:
            extra: More of it, by top-level key.
        """
        logger = {"save_dir": str(self.folder.parent.parent), "name": self.method, "version": self.folder.name}
        trainer = {
            "default_root_dir": str(self.folder),
            "enable_progress_bar": False,
            "enable_checkpointing": False,
            "enable_model_summary": False,
            "logger": {"class_path": "lightning.pytorch.loggers.TensorBoardLogger", "init_args": logger},
            "callbacks+": [{"class_path": "lightning_fire.compare.progress.ProgressReport"}],
        }
        own = {"seed_everything": self.seed, "data": {"init_args": {"seed": self.seed}}, "trainer": trainer}
        return _merged(own, extra)


def plan(recipe: Path, methods: Sequence[str], seeds: Sequence[int], output: Path) -> list[Run]:
    """List the runs of a comparison.

    Args:
        recipe: Folder with `base.yaml` and an overlay `<method>.yaml` for each method but `vanilla`.
        methods: Names of overlays, or `vanilla`.
        seeds: Seeds; each method runs with each.
        output: Folder of the comparison; a run logs to `<output>/<method>/seed<k>`.

    Returns:
        The runs, seed by seed.

    Raises:
        FileNotFoundError: If `recipe` has no `base.yaml`, or no overlay for a method; names those there are.
    """
    base = recipe / "base.yaml"
    if not base.is_file():
        raise FileNotFoundError(f"{recipe} is no recipe: it has no base.yaml")
    overlays = {path.stem: path for path in sorted(recipe.glob("*.yaml")) if path != base}
    for method in methods:
        if method != "vanilla" and method not in overlays:
            raise FileNotFoundError(
                f"no {method}.yaml in {recipe}; there are vanilla (the base) and {sorted(overlays)}"
            )
    return [
        Run(method, seed, output / method / f"seed{seed}", (base, *([overlays[method]] if method != "vanilla" else [])))
        for seed in seeds
        for method in methods
    ]


def execute(
    runs: Sequence[Run], jobs: int, extra: dict[str, Any], on_progress: Callable[[Any], None]
) -> dict[Run, str | None]:
    """Train all runs that have not finished before.

    A run that fails is reported and does not stop the others.

    Args:
        runs: What to train.
        jobs: Number of processes; the cores are shared out among them.
        extra: Configuration on top of each run's own, as for YAML.
        on_progress: Called with what `ProgressReport` sends.

    Returns:
        For each run, None if it is finished, or what went wrong.
    """
    outcome: dict[Run, str | None] = {run: None for run in runs}
    todo = [run for run in runs if not is_finished(run, extra)]
    if not todo:
        return outcome
    context = multiprocessing.get_context("spawn")
    threads = max(1, (os.cpu_count() or 1) // jobs)
    with context.Manager() as manager:
        queue = manager.Queue()
        with ProcessPoolExecutor(jobs, context) as pool:
            futures = {pool.submit(train, run, extra, threads, queue): run for run in todo}
            waiting = set(futures)
            while waiting:
                waiting -= {future for future in waiting if future.done()}
                with contextlib.suppress(Exception):
                    on_progress(queue.get(timeout=0.5))
            for future in as_completed(futures):
                outcome[futures[future]] = future.result() if not future.exception() else repr(future.exception())
        while not queue.empty():
            on_progress(queue.get())
    return outcome


def train(run: Run, extra: dict[str, Any], threads: int, queue: Any) -> str | None:
    """Train one run in this worker process, all of whose output goes to `log.txt` in the folder of the run.

    Args:
        run: What to train.
        extra: Configuration on top of the run's own.
        threads: Threads to use.
        queue: Where `ProgressReport` sends to.

    Returns:
        None, or the traceback of what went wrong.
    """
    from lightning_fire.cli import main  # the command line knows this package, not the other way round
    from lightning_fire.compare import progress

    torch.set_num_threads(threads)
    _make_room(run)
    progress.connect(queue, run.name)
    settings = run.folder / _SETTINGS
    settings.write_text(yaml.safe_dump(run.settings(extra)))
    with open(run.folder / "log.txt", "w") as log:
        for stream in (1, 2):  # for good, and for all loggers that hold on to a stream: the process is ours
            os.dup2(log.fileno(), stream)
    try:
        main(["fit", *(word for path in (*run.configs, settings) for word in ("-c", str(path)))])
    except (Exception, SystemExit):
        traceback.print_exc()
        return traceback.format_exc()
    (run.folder / _MARKER).write_text(json.dumps({"settings": _fingerprint(run, extra)}))
    return None


def is_finished(run: Run, extra: dict[str, Any]) -> bool:
    """Tell whether a run has finished before, with the recipe as it is now.

    Args:
        run: The run.
        extra: Configuration on top of the run's own.
    """
    marker = run.folder / _MARKER
    return marker.is_file() and json.loads(marker.read_text())["settings"] == _fingerprint(run, extra)


def _merged(base: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Lay one nested configuration over another, key by key: what it does not name stays."""
    result = dict(base)
    for key, value in other.items():
        both = isinstance(value, dict) and isinstance(base.get(key), dict)
        result[key] = _merged(base[key], value) if both else value
    return result


def _fingerprint(run: Run, extra: dict[str, Any]) -> str:
    parts = [path.read_text() for path in run.configs] + [yaml.safe_dump(run.settings(extra))]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _make_room(run: Run) -> None:
    """Remove what an interrupted run left; refuse to remove anything else."""
    if run.folder.exists() and any(run.folder.iterdir()):
        if not (run.folder / _SETTINGS).is_file():
            raise FileExistsError(
                f"{run.folder} holds files that are not of an earlier comparison; choose another --output"
            )
        shutil.rmtree(run.folder)
    run.folder.mkdir(parents=True, exist_ok=True)
