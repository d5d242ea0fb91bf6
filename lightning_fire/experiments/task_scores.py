"""What several comparisons have left, each of them a task: scores and curves that may be averaged."""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lightning_fire.experiments.return_history import read_returns
from lightning_fire.experiments.runs import MARKER

MEASURES = {  # columns of `results.csv` of which more is better, and what they are
    "final": "final score",
    "since": "mean score since the event",
    "average": "average score",
    "after_event": "score after the event",
    "before": "score before the event",
}
_POINTS = 50

Scores = Mapping[str, np.ndarray]  # by method, `(runs, tasks)`


@dataclass(frozen=True)
class Task:
    """What a comparison has left.

    Attributes:
        folder: Of the comparison.
        low: Score that becomes 0.
        high: Score that becomes 1.
        has_scale: Whether these were given.
        scores: As they were logged, by method and seed; NaN of a run that has none.
        of_returns: Whether they are returns.
    """

    folder: Path
    low: float
    high: float
    has_scale: bool
    scores: Mapping[str, Mapping[int, float]]
    of_returns: bool

    def normalized(self, score: Any) -> Any:
        """Return (score − low) / (high − low)."""
        return (score - self.low) / (self.high - self.low)


def read_task(word: str, measure: str) -> Task:
    """Read the results of a comparison."""
    folder, low, high, has_scale = _parts(word)
    path = folder / "results.csv"
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is not there: give a folder of lightning-fire compare, which writes it at the end"
        )
    with open(path, newline="") as file:
        reader = csv.DictReader(file)
        try:
            columns, rows = reader.fieldnames or [], list(reader)
        except csv.Error as error:
            raise ValueError(f"{path}: {error}") from None
    if list(columns[:2]) != ["method", "seed"]:
        raise ValueError(f"{path} is not of a comparison by method and seed: its columns are {', '.join(columns)}")
    if measure not in columns:
        there = [name for name in MEASURES if name in columns]
        raise ValueError(f"{path} has no column {measure}; --measure can be {' or '.join(there) or 'nothing here'}")
    if not rows:
        raise ValueError(f"{path} has no runs")
    scores: dict[str, dict[int, float]] = {}
    for row in rows:
        try:
            seed, score = int(row["seed"]), float(row[measure] or "nan")
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: {error}") from None
        if seed in scores.setdefault(row["method"], {}):
            raise ValueError(f"{path} has {row['method']} seed {seed} twice")
        scores[row["method"]][seed] = score
    return Task(folder, low, high, has_scale, scores, "since" in columns)


def _parts(word: str) -> tuple[Path, float, float, bool]:
    folder, equals, scale = word.rpartition("=")
    if not equals or Path(word).is_dir():
        return Path(word), 0.0, 1.0, False
    try:
        low, high = map(float, scale.split(":"))
    except ValueError:
        raise ValueError(
            f"{word} is no folder; or else after = there must be two numbers LOW:HIGH, got {scale!r}"
        ) from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"{word}: LOW must be less than HIGH, both finite")
    return Path(folder), low, high, True


def scores_of(tasks: Sequence[Task], methods: Sequence[str] | None) -> Scores:
    """Return the normalised scores by method, `(runs, tasks)`."""
    shared = [method for method in tasks[0].scores if all(method in task.scores for task in tasks)]
    for task in tasks:
        if missing := set(methods or ()) - set(task.scores):
            raise ValueError(f"{task.folder} has no {' '.join(sorted(missing))}; it has {' '.join(task.scores)}")
    if not shared:
        raise ValueError("no method is in all of the tasks")
    if len({task.has_scale for task in tasks}) > 1:
        without = next(task.folder for task in tasks if not task.has_scale)
        raise ValueError(f"{without} has no =LOW:HIGH, and other tasks have: their scores cannot be averaged")
    scores = {}
    for method in dict.fromkeys(methods or shared):
        columns = [list(task.scores[method].values()) for task in tasks]
        if len({len(column) for column in columns}) > 1:
            counts = ", ".join(f"{len(column)} in {task.folder}" for task, column in zip(tasks, columns, strict=True))
            raise ValueError(f"{method} must have as many seeds in each task (--methods leaves it out): {counts}")
        for task in tasks:
            if bad := [seed for seed, score in task.scores[method].items() if not math.isfinite(score)]:
                raise ValueError(
                    f"{method} has no finite score with seed {bad[0]} in {task.folder} (--methods leaves it out)"
                )
        normalized = [task.normalized(np.array(column)) for task, column in zip(tasks, columns, strict=True)]
        scores[method] = np.stack(normalized, axis=1)
    return scores


class Curves(NamedTuple):
    """Scores over training.

    Attributes:
        grid: Shares of training, `(points,)`.
        values: By method, `(runs, tasks, points)`.
        event: Share of training after which the methods act; None if none does, or not all at the same.
    """

    grid: np.ndarray
    values: Mapping[str, np.ndarray]
    event: float | None


def curves_of(tasks: Sequence[Task], methods: Sequence[str]) -> Curves | None:
    """Return the normalised returns over training; None of what are no returns, or where runs are not there in full."""
    if not all(task.of_returns for task in tasks):
        return None
    folders = {
        method: [[task.folder / method / f"seed{seed}" for seed in task.scores[method]] for task in tasks]
        for method in methods
    }
    every = [folder for by_task in folders.values() for by_seed in by_task for folder in by_seed]
    if missing := [folder for folder in every if not (folder / MARKER).is_file()]:
        print(f"without curves over training: {missing[0]} is no finished run")
        return None
    runs = {folder: read_returns(folder) for folder in every}
    shares = {folder: run.returns[0] / run.returns[0][-1] for folder, run in runs.items()}
    grid = np.linspace(max(share[0] for share in shares.values()), 1, _POINTS)
    events = {round(run.events[0] / run.returns[0][-1], 3) for run in runs.values() if len(run.events)}
    values = {
        method: np.stack(
            [
                [task.normalized(np.interp(grid, shares[folder], runs[folder].returns[1])) for folder in by_seed]
                for task, by_seed in zip(tasks, by_task, strict=True)
            ],
            axis=1,
        )
        for method, by_task in folders.items()
    }
    return Curves(grid, values, events.pop() if len(events) == 1 else None)
