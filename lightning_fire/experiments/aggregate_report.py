"""The table, the CSV files and the picture of comparisons on several tasks."""

import csv
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from lightning_fire.checkpoints.printable import printable
from lightning_fire.experiments.deliver import deliver
from lightning_fire.experiments.report import aligned, colors, number
from lightning_fire.experiments.stratified import (
    interquartile_mean,
    mean_of_all,
    median_of_tasks,
    percentiles,
    probability_of_improvement,
    resampled,
    share_above,
)
from lightning_fire.experiments.task_scores import Curves, Scores, Task

RESAMPLES = 10_000
_MINIMUM_RUNS = 10  # of fewer, seeds of all tasks together, a bootstrap interval is far too narrow
_OF_CURVES = 2_000
_STATISTICS = {"iqm": interquartile_mean, "median": median_of_tasks, "mean": mean_of_all}


class Estimate(NamedTuple):
    """A statistic and the two ends of its 95 % bootstrap interval; NaN where it has none."""

    value: float
    low: float
    high: float


Summary = Mapping[str, Mapping[str, Estimate]]  # by method and statistic


def statistics(scores: Scores, reference: str) -> dict[str, dict[str, Estimate]]:
    """Sum up each method: `iqm`, `median` (over the tasks, of means over the runs), `mean`, and `better`.

    `better` is how probable it is that a run is better than one of the reference; NaN of the reference itself.
    """
    drawn_reference = resampled(scores[reference], RESAMPLES, seed=1)
    result = {}
    for method, own in scores.items():
        drawn = resampled(own, RESAMPLES)
        of_method = {name: _estimate(of(own), of(drawn), _enough(own)) for name, of in _STATISTICS.items()}
        of_method["better"] = Estimate(np.nan, np.nan, np.nan)
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
    ends = percentiles(drawn) if enough else (np.nan, np.nan)
    return Estimate(float(value), *map(float, ends))


def table(scores: Scores, summary: Summary, reference: str) -> str:
    """Format the statistics for a terminal."""
    largest = max(abs(of[name].value) for of in summary.values() for name in _STATISTICS)
    digits = 1 if largest > 100 else 3
    titles = ["tasks", "seeds", "IQM", "95 % interval", "median", "mean", f"P(better than {printable(reference)})"]
    rows = [["method", *titles, "95 % interval"]]
    for method, of in summary.items():
        seeds, tasks = scores[method].shape
        middle = [number(of["iqm"].value, digits), _ends(of["iqm"], digits)]
        others = [number(of[name].value, digits) for name in ("median", "mean")]
        better = [number(of["better"].value, 2), _ends(of["better"], 2)]
        rows.append([printable(method), str(tasks), str(seeds), *middle, *others, *better])
    return aligned(rows)


def _ends(estimate: Estimate, digits: int) -> str:
    return "–" if np.isnan(estimate.low) else f"{number(estimate.low, digits)} to {number(estimate.high, digits)}"


def write_runs(tasks: Sequence[Task], methods: Sequence[str], path: Path) -> None:
    """Write the score of each run, as it was and normalised."""
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["task", "method", "seed", "score", "normalized"])
        for task in tasks:
            for method in methods:
                for seed, score in task.scores[method].items():
                    cells = (f"{value:.6g}" for value in (score, task.normalized(score)))
                    writer.writerow([task.folder, method, seed, *cells])


def write_statistics(summary: Summary, path: Path) -> None:
    """Write each statistic with its interval, a line each."""
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["method", "statistic", "value", "low_95", "high_95"])
        for method, of in summary.items():
            for name, estimate in of.items():
                writer.writerow([method, name, *("" if np.isnan(cell) else f"{cell:.6g}" for cell in estimate)])


def draw(scores: Scores, summary: Summary, curves: Curves | None, measure: str, path: Path) -> None:
    """Draw interquartile means with their intervals, the distribution of the scores, and the scores over training."""
    width = 3 if curves else 2
    figure, axes = plt.subplots(1, width, figsize=(4.6 * width, 4.2), layout="constrained")
    taken = dict(zip(scores, colors(len(scores)), strict=True))
    _draw_means(axes[0], summary, taken, measure)
    _draw_profile(axes[1], scores, taken, measure)
    if curves:
        _draw_curves(axes[2], curves, taken, measure.startswith("normalised"))
    for axis in axes:
        axis.grid(alpha=0.25)
    figure.savefig(path, dpi=140, format="png")
    plt.close(figure)


def _draw_means(axis: Axes, summary: Summary, taken: Mapping[str, str], measure: str) -> None:
    for place, (method, of) in enumerate(summary.items()):
        value, low, high = of["iqm"]
        axis.barh(place, high - low, left=low, height=0.6, color=taken[method], alpha=0.4)
        axis.plot(value, place, "|", color=taken[method], markersize=18, markeredgewidth=2.5)
    axis.set_yticks(range(len(summary)), list(map(printable, summary)), parse_math=False)
    axis.invert_yaxis()
    axis.set_xlabel(measure)
    axis.set_title("interquartile mean")


def _draw_profile(axis: Axes, scores: Scores, taken: Mapping[str, str], measure: str) -> None:
    every = np.concatenate([own.ravel() for own in scores.values()])
    thresholds = np.linspace(every.min(), every.max(), 100)
    for method, own in scores.items():
        axis.plot(thresholds, share_above(own, thresholds), color=taken[method], linewidth=1.6)
        if _enough(own):
            low, high = percentiles(share_above(resampled(own, _OF_CURVES), thresholds))
            axis.fill_between(thresholds, low, high, color=taken[method], alpha=0.15, linewidth=0)
    axis.set_xlabel(f"{measure}, x")
    axis.set_title("share of runs above x")


def _draw_curves(axis: Axes, curves: Curves, taken: Mapping[str, str], scaled: bool) -> None:
    for method, values in curves.values.items():
        at_points = np.moveaxis(values, -1, 0)
        axis.plot(curves.grid, interquartile_mean(at_points), color=taken[method], linewidth=1.6)
        if _enough(values):
            ends = np.array([percentiles(interquartile_mean(resampled(at, _OF_CURVES))) for at in at_points])
            axis.fill_between(curves.grid, ends[:, 0], ends[:, 1], color=taken[method], alpha=0.15, linewidth=0)
    if curves.event is not None:
        axis.axvline(curves.event, linestyle="--", linewidth=1, color="black")
    axis.set_xlabel("share of training")
    axis.set_ylabel(f"{'normalised ' if scaled else ''}return")
    axis.set_title("interquartile mean")


def publish(
    tasks: Sequence[Task],
    scores: Scores,
    curves: Curves | None,
    summary: Summary,
    reference: str,
    measure: str,
    output: Path,
) -> None:
    """Write everything, print the table and say where the rest is."""
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SystemExit(f"{output} cannot be made: {error}") from None
    name = f"normalised {measure}" if tasks[0].has_scale else measure
    if len(tasks) > 1 and tasks[0].of_returns and not tasks[0].has_scale:
        print("returns of several tasks without =LOW:HIGH: the one with the largest returns counts most")
    deliver(
        output,
        table(scores, summary, reference),
        {
            "runs.csv": partial(write_runs, tasks, list(scores)),
            "aggregate.csv": partial(write_statistics, summary),
            "aggregate.png": partial(draw, scores, summary, curves, name),
        },
        f"score: {name}; IQM: mean of all runs without the best and the worst quarter; median: over the tasks, of means"
        " over the seeds; P: that a run is better than one of the reference on the same task; intervals: bootstrap,"
        f" stratified by task; – : fewer than {_MINIMUM_RUNS} runs, seeds of all tasks together",
    )
