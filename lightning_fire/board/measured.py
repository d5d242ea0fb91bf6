"""Measure methods on a task of the board: tune, then train with the reported seeds."""

import argparse
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lightning_fire.board.row import Cell
from lightning_fire.board.suite import Suite, Task
from lightning_fire.experiments.compare import train_and_read, with_monitor
from lightning_fire.experiments.engines import Engine
from lightning_fire.experiments.report import ComparisonReport
from lightning_fire.experiments.runs import PROGRESS, SETTINGS, Run, at_work_in, merged, plan
from lightning_fire.experiments.sweep import Sweep, as_config
from lightning_fire.recipe.recipe import VANILLA, Recipe

FULL_RESET = "full_reset"  # scratch: training from scratch at each change
_POINTS = 40  # of a curve


def measured(
    suite: Suite, task: Task, methods: Sequence[str], output: Path, engine: Engine, minutes: float | None = None
) -> dict[str, Cell]:
    """Tune methods on a task and train them with the reported seeds; return the cells of those that could be trained.

    Finished runs in `output` are not run again.

    Args:
        suite: The suite, with these methods.
        task: One of its tasks.
        methods: Names of methods, none of which the task leaves out.
        output: Folder of the runs.
        engine: Engine that trains them.
        minutes: Time after which a SystemExit ends it; the same call continues.
    """
    folder, recipe = output / task.name, suite.recipe_of(task)
    options = argparse.Namespace(
        trials=suite.trials, measure=task.measure, prune=False, metric=task.metric, mode=task.mode, max_minutes=minutes
    )
    tuned = dict[str, Tuned]()
    with at_work_in(folder):
        for method in methods:
            sweep = argparse.Namespace(**vars(options), method=method)
            tuned[method] = _tuned(suite, task, recipe, folder, engine, sweep)
        recipe = replace(recipe, methods={**recipe.methods, **{name: of.layer for name, of in tuned.items()}})
        runs = with_monitor(plan(recipe, [VANILLA, *{FULL_RESET: 0} | dict.fromkeys(methods)], suite.seeds, folder))
        report, _ = train_and_read(runs, engine, VANILLA, options)
    if report is None:
        return {}
    return {method: cell for method in methods if (cell := _cell(task, recipe, method, report, runs, tuned[method]))}


class Tuned(NamedTuple):
    """A method with its chosen hyper-parameters."""

    layer: Mapping[str, Any]  # of the recipe
    setting: Mapping[str, Any]  # empty: nothing is tuned
    tried: Mapping[str, float]  # mean result of each setting, by name


def _tuned(
    suite: Suite, task: Task, recipe: Recipe, folder: Path, engine: Engine, options: argparse.Namespace
) -> Tuned:
    """Try the settings of a method on the tuning seeds; choose the one with the best mean."""
    method = options.method
    layer, space = recipe.layers(method)[-1] if method in recipe.methods else {}, suite.space_of(task, method)
    if not space:
        return Tuned(layer, {}, {})
    (example,) = with_monitor(plan(recipe, [method], [0], folder))
    sweep = Sweep(recipe, options, example, space, folder / "tuning", engine, suite.tuning_seeds)
    sweep.study()
    if not sweep.scores:  # every setting has diverged
        return Tuned(layer, {}, {})
    best = max(sweep.scores, key=lambda label: sweep.scores[label])
    sign = -1 if task.mode == "min" else 1
    tried = {label.partition(",")[2]: sign * score for label, score in sweep.scores.items()}
    return Tuned(merged(layer, as_config(sweep.settings[best])), sweep.settings[best], tried)


def _cell(
    task: Task, recipe: Recipe, method: str, report: ComparisonReport, runs: Sequence[Run], tuned: Tuned
) -> Cell | None:
    values, vanilla, scratch = (
        {seed: float(f"{value:.6g}") for seed, value in report.of("", name, task.measure).items()}
        for name in (method, VANILLA, FULL_RESET)
    )
    if not values:
        return None
    own = [run for run in runs if run.method == method and run.seed in values]
    layers = json.dumps([task.recipe.base, tuned.layer], sort_keys=True)
    return Cell(
        values,
        vanilla,
        scratch,
        tuned.setting,
        tuned.tried,
        _curve([report.curves["", method, run.seed].get(task.curve) for run in own]),
        round(float(np.median([_seconds(run) for run in own])), 2),
        hashlib.sha256(layers.encode()).hexdigest(),
    )


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
