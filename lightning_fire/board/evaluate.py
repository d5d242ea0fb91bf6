"""Measure methods on a task of the board: tune, then train with the reported seeds."""

import argparse
import hashlib
import json
import math
import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lightning_fire.board.row import Cell
from lightning_fire.board.suite import Suite, Task
from lightning_fire.experiments.compare import train_and_read, with_monitor
from lightning_fire.experiments.engines import Engine
from lightning_fire.experiments.runs import PROGRESS, SETTINGS, Run, lock_folder, merged, plan
from lightning_fire.experiments.sweep import Sweep, as_config
from lightning_fire.recipe.recipe import VANILLA, Recipe

if TYPE_CHECKING:
    from lightning_fire.experiments.report import ComparisonReport

FULL_RESET = "full_reset"  # scratch: training from scratch at each change
REFERENCES = VANILLA, FULL_RESET
_POINTS = 40  # of a curve
_PACKAGES = ("lightning-fire", "torch", "lightning", "numpy")


def evaluate(
    suite: Suite, task: Task, methods: Sequence[str], output: Path, engine: Engine, until: float = math.inf
) -> dict[str, Cell]:
    """Tune methods on a task and train them with the reported seeds; return the cells of those that could be trained.

    A method is left out, with a printed reason, if no setting or not every seed could be trained. Finished runs in
    `output` are not run again.

    Args:
        suite: The suite, with these methods.
        task: One of its tasks.
        methods: Names of methods, none of which the task leaves out.
        output: Folder of the runs.
        engine: Engine that trains them.
        until: Time of `time.monotonic` after which a SystemExit ends it; the same call continues.
    """
    folder, recipe = output / task.name, suite.recipe_of(task)
    tuned = dict[str, Tuned]()
    with lock_folder(folder, until=until):
        for method in methods:
            found = _tuned(suite, task, recipe, folder, engine, _options(suite, task, until, method))
            if found is None:
                print(f"{task.name}: no setting of {method} could be trained, so that it is left out", flush=True)
            else:
                tuned[method] = found
        if not tuned:
            return {}
        recipe = replace(recipe, methods={**recipe.methods, **{name: of.layer for name, of in tuned.items()}})
        runs = with_monitor(plan(recipe, [VANILLA, *{FULL_RESET: 0} | dict.fromkeys(tuned)], suite.seeds, folder))
        report, _ = train_and_read(runs, engine, VANILLA, _options(suite, task, until))
        cells = dict[str, Cell]()
        for method in tuned:
            every = [{} if report is None else report.of("", name, task.measure) for name in (method, *REFERENCES)]
            named = zip((method, *REFERENCES), every, strict=True)
            lacking = [f"{name} seed {seed}" for name, of in named for seed in suite.seeds if seed not in of]
            if report is None or lacking:
                print(f"{task.name}: {method} is left out, without {', '.join(lacking)}", flush=True)
            else:
                cells[method] = _cell(task, method, report, every, runs, tuned[method])
    return cells


def recipe_digest(task: Task, layer: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the recipe of a task with what a method adds to it."""
    return hashlib.sha256(json.dumps([task.recipe.base, layer], sort_keys=True).encode()).hexdigest()


def _options(suite: Suite, task: Task, until: float, method: str = "") -> argparse.Namespace:
    """Return the options of a sweep and of `train_and_read`."""
    minutes = None if math.isinf(until) else max(0.0, until - time.monotonic()) / 60
    return argparse.Namespace(
        trials=suite.trials,
        measure=task.measure,
        prune=False,
        metric=task.metric,
        mode=task.mode,
        max_minutes=minutes,
        method=method,
    )


class Tuned(NamedTuple):
    """A method with its chosen hyper-parameters."""

    layer: Mapping[str, Any]  # of the recipe
    setting: Mapping[str, Any]  # empty: nothing is tuned
    tried: Mapping[str, float]  # mean result of each setting, by name


def _tuned(
    suite: Suite, task: Task, recipe: Recipe, folder: Path, engine: Engine, options: argparse.Namespace
) -> Tuned | None:
    """Try the settings of a method on the tuning seeds; choose the one with the best mean; None: none has one."""
    method = options.method
    layer, space = recipe.methods.get(method, {}), suite.space_of(task, method)
    if not space:
        return Tuned(layer, {}, {})
    (example,) = with_monitor(plan(recipe, [method], [0], folder))
    sweep = Sweep(recipe, options, example, space, folder / "tuning", engine, suite.tuning_seeds)
    sweep.study()
    if not sweep.scores:
        return None
    best = max(sweep.scores, key=lambda label: sweep.scores[label])
    sign = -1 if task.mode == "min" else 1
    tried = {label.partition(",")[2]: sign * score for label, score in sweep.scores.items()}
    return Tuned(merged(layer, as_config(sweep.settings[best])), sweep.settings[best], tried)


def _cell(
    task: Task,
    method: str,
    report: "ComparisonReport",
    results: Sequence[Mapping[int, float]],
    runs: Sequence[Run],
    tuned: Tuned,
) -> Cell:
    """Return the cell of a method, from the results of it, of vanilla and of the full reset by seed."""
    values, vanilla, scratch = ({seed: float(f"{value:.6g}") for seed, value in of.items()} for of in results)
    own = [run for run in runs if run.method == method]
    return Cell(
        values,
        vanilla,
        scratch,
        tuned.setting,
        tuned.tried,
        _curve([report.curves["", method, run.seed].get(task.curve) for run in own]),
        round(float(np.median([_seconds(run) for run in own])), 2),
        recipe_digest(task, tuned.layer),
        versions={package: version(package) for package in _PACKAGES} | {"python": platform.python_version()},
        machine=_machine(),
    )


def _machine() -> str:
    import torch

    vector = torch.backends.cpu.get_cpu_capability()  # other vector instructions round differently
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, {vector}"


def _curve(series: Sequence[Any]) -> list[tuple[float, float]]:
    """Return mean and standard deviation over seeds at up to 40 points of their curves, rounded."""
    if None in series or len({len(values) for _, values in series}) != 1:
        return []
    values = np.array([of for _, of in series])
    positions = np.unique(np.linspace(0, values.shape[1] - 1, _POINTS).round().astype(int))
    spread = values.std(0, ddof=1) if len(values) > 1 else np.zeros(values.shape[1])
    return [(float(f"{values[:, i].mean():.4g}"), float(f"{spread[i]:.2g}")) for i in positions]


def _seconds(run: Run) -> float:
    """Return the wall-clock time of a run, from its settings to the end of its training."""
    return (run.folder / PROGRESS).stat().st_mtime - (run.folder / SETTINGS).stat().st_mtime
