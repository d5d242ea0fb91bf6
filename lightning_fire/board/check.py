"""Check a row of the board: some seeds of its cells are trained again."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from lightning_fire.board.evaluate import FULL_RESET, evaluate, recipe_digest
from lightning_fire.board.row import Cell, Row, Values
from lightning_fire.board.suite import SUITE, Suite, Task
from lightning_fire.experiments.engines import Engine
from lightning_fire.experiments.runs import merged
from lightning_fire.experiments.sweep import as_config
from lightning_fire.recipe.recipe import VANILLA

CHECKED = 2  # number of seeds to train again
EQUAL = 1e-6  # largest difference of numbers with six digits that are the same


def reproduce_row(
    row: Row, source: str, suite: Suite, names: Sequence[str], output: Path, engine: Engine, until: float = math.inf
) -> bool:
    """Train the first seeds of cells again, with the settings of the cells, and print how the numbers differ.

    A cell whose recipe is not that of the suite is not trained; all of these are named before the first training.

    Args:
        row: The row.
        source: SHA-256 of the present code of the user's method; empty: shipped.
        suite: The suite, with the method.
        names: Tasks of the cells.
        output: Folder of the runs.
        engine: Engine that trains them.
        until: Time of `time.monotonic` after which a SystemExit ends it; the same call continues.

    Returns:
        Whether all cells are there, and all numbers of the method, `vanilla` and `scratch` agree: they are equal, or
        differ by at most their standard deviation between seeds.
    """
    tasks, agree = dict[str, Task](), bool(names)
    for name in names:
        cell, task = row.cells.get(name), suite.tasks.get(name)
        told = "the row has no cell"
        if task is None:
            told = f"not checked: there is no such task in {suite.path}"
        elif reason := suite.reason_against(task, row.method):
            told = f"not checked: {reason}"
        elif cell is not None and cell.values:
            layer = merged(suite.recipe_of(task).methods.get(row.method, {}), as_config(dict(cell.setting)))
            if recipe_digest(task, layer) == cell.recipe:
                methods = {**task.recipe.methods, row.method: layer}
                tasks[name] = replace(task, recipe=replace(task.recipe, methods=methods), space={})
                continue
            of, file = f"the recipe or setting is not that of {suite.path}", cell.suite or SUITE
            told = f"not checked: {of}: " + ("it has changed" if Path(file) == suite.path else f"name --suite {file}")
        print(f"{name}: {told}", flush=True)
        agree = False
    for name, task in tasks.items():
        told, same = _trained_again(row.method, row.cells[name], source, suite, task, output, engine, until)
        print(f"{name}: {told}", flush=True)
        agree &= same
    return agree


def _trained_again(
    method: str, cell: Cell, source: str, suite: Suite, task: Task, output: Path, engine: Engine, until: float
) -> tuple[str, bool]:
    """Train the first seeds of a cell again; return a sentence about the differences, and whether the cell agrees."""
    again = replace(suite, seeds=list(cell.values)[:CHECKED], space={})
    now = evaluate(again, task, [method], output, engine, until).get(method)
    if now is None:
        return "it could not be trained", False
    pairs = (cell.values, now.values), (cell.vanilla, now.vanilla), (cell.scratch, now.scratch)
    told, agree = [], True
    for name, (values, after) in zip((method, VANILLA, FULL_RESET), pairs, strict=True):
        distance = max(_distance(values.get(seed, math.inf), after[seed]) for seed in again.seeds)
        spread = _spread(values)
        agree &= distance <= max(spread, EQUAL)
        if math.isinf(distance):
            told.append(f"{name} lacks a seed, or has diverged with other seeds")
        elif distance > EQUAL:
            told.append(f"{name} differs by up to {distance:.3g}, standard deviation between seeds {spread:.3g}")
    told = told or ["equal"]
    told += ["other code of the method"] if cell.source != source else []
    versions = {key: (old, now.versions.get(key)) for key, old in cell.versions.items()}
    told += [f"{key} {old}, here {new}" for key, (old, new) in versions.items() if old != new]
    return f"seeds {', '.join(map(str, again.seeds))}: {'; '.join(told)}", agree


def _distance(before: float, after: float) -> float:
    """Return the distance of two results; 0 if both have diverged (NaN or Inf), Inf if one has."""
    if math.isfinite(before) and math.isfinite(after):
        return abs(before - after)
    return math.inf if math.isfinite(before) or math.isfinite(after) else 0.0


def _spread(values: Values) -> float:
    there = [value for value in values.values() if math.isfinite(value)]
    return float(np.std(there, ddof=1)) if len(there) > 1 else 0.0
