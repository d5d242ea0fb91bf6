"""`lightning-fire aggregate`: several comparisons, each of them a task, in one table and figure."""

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from lightning_fire.experiments.logs import read_curves
from lightning_fire.experiments.pictures import colors, save
from lightning_fire.experiments.report import deliver, figures, number
from lightning_fire.experiments.returns import events_of, returns_of
from lightning_fire.experiments.runs import MARKER, reference_of
from lightning_fire.experiments.statistics import (
    interquartile_mean,
    mean_of_all,
    median_of_tasks,
    percentiles,
    probability_of_improvement,
    resampled,
    share_above,
)
from lightning_fire.printable import printable
from lightning_fire.recipe.recipe import check_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MEASURES = {  # columns of `results.csv` of which more is better, and what they are
    "final": "final score",
    "since": "mean score since the event",
    "average": "average score",
    "after_event": "score after the event",
    "before": "score before the event",
}
RESAMPLES, _OF_CURVES, _POINTS = 10_000, 2_000, 50
_MINIMUM_RUNS = 10  # of fewer, seeds of all tasks together, a bootstrap interval is far too narrow
_STATISTICS = {"iqm": interquartile_mean, "median": median_of_tasks, "mean": mean_of_all}

Scores = Mapping[str, np.ndarray]  # by method, `(runs, tasks)`


class Estimate(NamedTuple):
    """A statistic and the two ends of its 95 % bootstrap interval; NaN where it has none."""

    value: float
    low: float = np.nan
    high: float = np.nan


Summary = Mapping[str, Mapping[str, Estimate]]  # by method and statistic


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="lightning-fire aggregate",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Sum up what compare has left for several tasks, as rliable does: the interquartile mean over all\n"
        "runs of all tasks, how probable it is that a run is better than one of another method, and 95 % intervals of\n"
        "both by bootstrap, stratified by task. Trains nothing.",
        epilog="human-normalised scores of the paper's games (random play and humans of Wang et al., ICML 2016):\n"
        "  lightning-fire aggregate runs/asterix=210:8503.3 runs/beam_rider=363.9:16926.5 runs/demon_attack=152.1:1971",
    )
    parser.add_argument(
        "tasks",
        nargs="+",
        metavar="FOLDER[=LOW:HIGH]",
        help="a folder with results.csv of compare; its scores become (score - LOW) / (HIGH - LOW), so that those of"
        " different tasks may be averaged",
    )
    parser.add_argument(
        "--measure",
        choices=MEASURES,
        default="final",
        help="column of results.csv, greater is better (default: final); of returns: before the event, final, mean"
        " since the event; of accuracies: after_event, final, average at the ends of the chunks",
    )
    parser.add_argument("--methods", nargs="+", help="in this order (default: all that every task has)")
    parser.add_argument(
        "--reference", help="method that the others are compared with (default: vanilla, or else the first)"
    )
    parser.add_argument(
        "--output", type=Path, default=Path("runs/aggregate"), help="folder for the results (default: runs/aggregate)"
    )
    return parser


def main(args: Sequence[str] | None = None) -> dict[str, dict[str, Estimate]]:
    """Run the command, and return for each method what `statistics` does."""
    options = parser().parse_args(args)
    try:
        tasks = [read_task(word, options.measure) for word in options.tasks]
        scores = scores_of(tasks, options.methods)
        reference = reference_of(options.reference, list(scores))
        curves = curves_of(tasks, scores)
    except (OSError, ValueError) as error:
        parser().error(printable(str(error)))
    summary = statistics(scores, reference)
    publish(tasks, scores, curves, summary, reference, MEASURES[options.measure], options.output)
    return summary


@dataclass(frozen=True)
class Task:
    """Results that a comparison has left in its folder.

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
    scores: pd.Series
    of_returns: bool

    def normalized(self, score: Any) -> Any:
        """Return (score − low) / (high − low)."""
        return (score - self.low) / (self.high - self.low)

    @property
    def methods(self) -> list[str]:
        """Names of the methods, in their order."""
        return list(self.scores.index.unique("method"))


def read_task(word: str, measure: str) -> Task:
    """Read the results of a comparison."""
    folder, low, high, has_scale = _parts(word)
    path = folder / "results.csv"
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is not there: give a folder of lightning-fire compare, which writes it at the end"
        )
    types = {"method": str, "seed": int, measure: float}
    rows = pd.read_csv(path, dtype=types, keep_default_na=False, na_values={measure: [""]})
    columns = list(rows.columns)
    if columns[:2] != ["method", "seed"]:
        raise ValueError(f"{path} is not of a comparison by method and seed: its columns are {', '.join(columns)}")
    if measure not in columns:
        there = [name for name in MEASURES if name in columns]
        raise ValueError(f"{path} has no column {measure}; --measure can be {' or '.join(there) or 'nothing here'}")
    for method in rows["method"].unique():
        try:
            check_name(method)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
    scores = rows.set_index(["method", "seed"])[measure]
    if (twice := scores.index[scores.index.duplicated()]).size:
        raise ValueError(f"{path} has {twice[0][0]} seed {twice[0][1]} twice")
    return Task(folder, low, high, has_scale, scores, "since" in columns)


def _parts(word: str) -> tuple[Path, float, float, bool]:
    folder, equals, scale = word.rpartition("=")
    if not equals or Path(word).is_dir():
        return Path(word), 0.0, 1.0, False
    try:
        low, high = map(float, scale.split(":"))
    except ValueError:
        raise ValueError(
            f"{word} is not a folder; or else after = there must be two numbers LOW:HIGH, got {scale!r}"
        ) from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"{word}: LOW must be less than HIGH, both finite")
    return Path(folder), low, high, True


def scores_of(tasks: Sequence[Task], methods: Sequence[str] | None) -> Scores:
    """Return the normalised scores by method, `(runs, tasks)`."""
    shared = [method for method in tasks[0].methods if all(method in task.methods for task in tasks)]
    for task in tasks:
        if missing := set(methods or ()) - set(task.methods):
            raise ValueError(f"{task.folder} has no {' '.join(sorted(missing))}; it has {' '.join(task.methods)}")
    if not shared:
        raise ValueError("no method is in all of the tasks")
    if len({task.has_scale for task in tasks}) > 1:
        without = next(task.folder for task in tasks if not task.has_scale)
        raise ValueError(f"{without} has no =LOW:HIGH, and other tasks have: their scores cannot be averaged")
    scores = {}
    for method in dict.fromkeys(methods or shared):
        columns = [task.scores[method] for task in tasks]
        if len({len(column) for column in columns}) > 1:
            counts = ", ".join(f"{len(column)} in {task.folder}" for task, column in zip(tasks, columns, strict=True))
            raise ValueError(f"{method} must have as many seeds in each task (--methods leaves it out): {counts}")
        for task, column in zip(tasks, columns, strict=True):
            if (bad := column[~np.isfinite(column)]).size:
                raise ValueError(
                    f"{method} has no finite score with seed {bad.index[0]} in {task.folder} (--methods leaves it out)"
                )
        normalized = [task.normalized(column.to_numpy()) for task, column in zip(tasks, columns, strict=True)]
        scores[method] = np.stack(normalized, axis=1)
    return scores


class Curves(NamedTuple):
    """Scores over training.

    Attributes:
        grid: Fractions of training, `(points,)`.
        values: By method, `(runs, tasks, points)`.
        event: Fraction of training after which the methods act; None if none does, or not all at the same.
    """

    grid: np.ndarray
    values: Mapping[str, np.ndarray]
    event: float | None


def curves_of(tasks: Sequence[Task], methods: Sequence[str]) -> Curves | None:
    """Return the normalised returns over training; None if the scores are not returns or a run is incomplete."""
    if not all(task.of_returns for task in tasks):
        return None
    folders = {
        m: [[task.folder / m / f"seed{seed}" for seed in task.scores[m].index] for task in tasks] for m in methods
    }
    every = [folder for by_task in folders.values() for by_seed in by_task for folder in by_seed]
    if missing := [folder for folder in every if not (folder / MARKER).is_file()]:
        print(f"without curves over training: {missing[0]} is not a finished run")
        return None
    returns, events = {}, set()
    for folder in every:
        log = read_curves(folder)
        steps, values = returns_of(log)
        returns[folder] = steps / steps[-1], values
        events |= {round(event / steps[-1], 3) for event in events_of(log)[:1]}
    grid = np.linspace(max(fractions[0] for fractions, _ in returns.values()), 1, _POINTS)
    curves = {
        method: [
            [task.normalized(np.interp(grid, *returns[folder])) for folder in by_seed]
            for task, by_seed in zip(tasks, by_task, strict=True)
        ]
        for method, by_task in folders.items()
    }
    values = {method: np.stack(of_method, axis=1) for method, of_method in curves.items()}
    return Curves(grid, values, events.pop() if len(events) == 1 else None)


def statistics(scores: Scores, reference: str) -> dict[str, dict[str, Estimate]]:
    """Sum up each method: `iqm`, `median` (over the tasks, of means over the runs), `mean`, and `better`.

    `better` is how probable it is that a run is better than one of the reference; NaN of the reference itself.
    """
    drawn_reference = resampled(scores[reference], RESAMPLES, seed=1)
    result = {}
    for method, own in scores.items():
        drawn = resampled(own, RESAMPLES)
        of_method = {name: _estimate(of(own), of(drawn), _enough(own)) for name, of in _STATISTICS.items()}
        of_method["better"] = Estimate(np.nan)
        if method != reference:
            value = probability_of_improvement(own, scores[reference])
            enough = _enough(own) and _enough(scores[reference])
            of_method["better"] = _estimate(value, probability_of_improvement(drawn, drawn_reference), enough)
        result[method] = of_method
    return result


def _enough(scores: np.ndarray) -> bool:
    """Return whether `(runs, tasks, ...)` scores are enough for a bootstrap interval."""
    runs, tasks = scores.shape[:2]
    return runs > 1 and runs * tasks >= _MINIMUM_RUNS


def _estimate(value: np.ndarray, drawn: np.ndarray, enough: bool) -> Estimate:
    return Estimate(float(value), *(map(float, percentiles(drawn)) if enough else ()))


def table(scores: Scores, summary: Summary, reference: str) -> list[list[str]]:
    """Return the cells of the table, the first row the header."""
    largest = max(abs(of[name].value) for of in summary.values() for name in _STATISTICS)
    digits = 1 if largest > 100 else 3
    titles = ["tasks", "seeds", "IQM", "95 % interval", "median", "mean", f"P(better than {reference})"]
    rows = [["method", *titles, "95 % interval"]]
    for method, of in summary.items():
        seeds, tasks = scores[method].shape
        middle = [number(of["iqm"].value, digits), _ends(of["iqm"], digits)]
        others = [number(of[name].value, digits) for name in ("median", "mean")]
        better = [number(of["better"].value, 2), _ends(of["better"], 2)]
        rows.append([method, str(tasks), str(seeds), *middle, *others, *better])
    return rows


def _ends(estimate: Estimate, digits: int) -> str:
    return "–" if np.isnan(estimate.low) else f"{number(estimate.low, digits)} to {number(estimate.high, digits)}"


def publish(
    tasks: Sequence[Task],
    scores: Scores,
    curves: Curves | None,
    summary: Summary,
    reference: str,
    measure: str,
    output: Path,
) -> None:
    """Write all files, print the table and the paths of the other files."""
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SystemExit(f"{output} cannot be made: {error}") from None
    name = f"normalised {measure}" if tasks[0].has_scale else measure
    if len(tasks) > 1 and tasks[0].of_returns and not tasks[0].has_scale:
        print("returns of several tasks without =LOW:HIGH: the one with the largest returns counts most")
    runs = [
        [str(task.folder), method, seed, score, task.normalized(score)]
        for task in tasks
        for method in scores
        for seed, score in task.scores[method].items()
    ]
    of_runs = pd.DataFrame(runs, columns=["task", "method", "seed", "score", "normalized"])
    lines = [[method, name, *estimate] for method, of in summary.items() for name, estimate in of.items()]
    statistics = pd.DataFrame(lines, columns=["method", "statistic", "value", "low_95", "high_95"])
    options = {"index": False, "float_format": "%.6g"}
    deliver(
        output,
        [table(scores, summary, reference)],
        {
            "runs.csv": partial(of_runs.to_csv, **options),
            "aggregate.csv": partial(statistics.to_csv, **options),
            **figures("aggregate", partial(draw, scores, summary, curves, name)),
        },
        f"score: {name}; IQM: mean of all runs without the best and the worst quarter; median: over the tasks, of means"
        " over the seeds; P: that a run is better than one of the reference on the same task; intervals: bootstrap,"
        f" stratified by task; – : fewer than {_MINIMUM_RUNS} runs, seeds of all tasks together",
    )


def draw(scores: Scores, summary: Summary, curves: Curves | None, measure: str, path: Path, form: str) -> None:
    """Draw interquartile means with their intervals, the distribution of the scores, and the scores over training."""
    import matplotlib.pyplot as plt

    width = 3 if curves else 2
    figure, axes = plt.subplots(1, width, figsize=(4.6 * width, 4.2), layout="constrained")
    taken = colors(list(scores))
    for place, (method, of) in enumerate(summary.items()):
        value, low, high = of["iqm"]
        axes[0].barh(place, high - low, left=low, height=0.6, color=taken[method], alpha=0.4)
        axes[0].plot(value, place, "|", color=taken[method], markersize=18, markeredgewidth=2.5)
    axes[0].set_yticks(range(len(summary)), list(summary), parse_math=False)
    axes[0].invert_yaxis()
    axes[0].set(xlabel=measure, title="interquartile mean")
    every = np.concatenate([own.ravel() for own in scores.values()])
    thresholds = np.linspace(every.min(), every.max(), 100)
    for method, own in scores.items():
        _line(axes[1], thresholds, own, partial(share_above, thresholds=thresholds), taken[method])
    axes[1].set(xlabel=f"{measure}, x", title="fraction of runs above x")
    if curves:
        for method, values in curves.values.items():
            _line(axes[2], curves.grid, values, _means_at_points, taken[method])
        if curves.event is not None:
            axes[2].axvline(curves.event, linestyle="--", linewidth=1, color="black")
        axes[2].set(xlabel="fraction of training", title="interquartile mean")
        axes[2].set_ylabel(f"{'normalised ' if measure.startswith('normalised') else ''}return")
    for axis in axes:
        axis.grid(alpha=0.25)
    save(figure, path, form)


def _line(axis: "Axes", places: np.ndarray, scores: np.ndarray, of: Any, color: str) -> None:
    """Draw a statistic of scores, and its interval if they are enough for one."""
    axis.plot(places, of(scores), color=color, linewidth=1.6)
    if _enough(scores):
        low, high = percentiles(of(resampled(scores, _OF_CURVES)))
        axis.fill_between(places, low, high, color=color, alpha=0.15, linewidth=0)


def _means_at_points(scores: np.ndarray) -> np.ndarray:
    """Return the interquartile mean at each point of curves `(..., runs, tasks, points)`."""
    return interquartile_mean(np.moveaxis(scores, -1, 0)).T
