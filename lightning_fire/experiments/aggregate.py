"""`lightning-fire aggregate`: several comparisons, each a task, in one table."""

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from lightning_fire.experiments.runs import reference_of
from lightning_fire.experiments.statistics import interquartile_mean, percentiles, probability_of_improvement, resampled
from lightning_fire.experiments.tables import deliver, number
from lightning_fire.printable import printable
from lightning_fire.recipe.recipe import check_name

MEASURES = ("final", "since", "average", "after_event", "before")  # columns of `results.csv` in which more is better
RESAMPLES = 10_000
_MINIMUM_RUNS = 10  # number of runs over all tasks below which a bootstrap interval is far too narrow


class Estimate(NamedTuple):
    """A statistic and the ends of its 95 % bootstrap interval; NaN without an interval."""

    value: float
    low: float = math.nan
    high: float = math.nan


def parser() -> argparse.ArgumentParser:
    """Return the argument parser of the command."""
    parser = argparse.ArgumentParser(
        prog="lightning-fire aggregate",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Summarize results of compare on several tasks, as rliable does: the interquartile mean over\n"
        "all runs of all tasks, the probability that a run is better than a run of another method, and 95 %\n"
        "intervals of both by bootstrap, stratified by task. Does not train.",
        epilog="human-normalized scores of the paper's games (random play and humans of Wang et al., ICML 2016):\n"
        "  lightning-fire aggregate runs/asterix=210:8503.3 runs/beam_rider=363.9:16926.5 runs/demon_attack=152.1:1971",
    )
    parser.add_argument(
        "tasks",
        nargs="+",
        metavar="FOLDER[=LOW:HIGH]",
        help="folder with results.csv of compare; with =LOW:HIGH its scores become (score - LOW) / (HIGH - LOW), so"
        " that tasks can be averaged",
    )
    parser.add_argument(
        "--measure",
        choices=MEASURES,
        default="final",
        help="column of results.csv, larger is better (default: final); returns: before (the event), final, since"
        " (mean since the event); accuracies: after_event, final, average (at the ends of the chunks)",
    )
    parser.add_argument("--methods", nargs="+", help="methods, in this order (default: all that every task has)")
    parser.add_argument(
        "--reference", help="method that the others are compared with (default: vanilla, otherwise the first)"
    )
    parser.add_argument(
        "--output", type=Path, default=Path("runs/aggregate"), help="folder for the results (default: runs/aggregate)"
    )
    return parser


def main(args: Sequence[str] | None = None) -> dict[str, tuple[Estimate, Estimate]]:
    """Run the command; return each method's interquartile mean and probability of improvement over the reference."""
    options = parser().parse_args(args)
    try:
        folders, scales, tasks = zip(*(read_task(word, options.measure) for word in options.tasks), strict=True)
        if "" in scales and any(scales):
            without = folders[scales.index("")]
            raise ValueError(f"{without} has no =LOW:HIGH, and other tasks have: their scores cannot be averaged")
        scores = scores_of(folders, tasks, options.methods)
        reference = reference_of(options.reference, list(scores))
        options.output.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        parser().error(printable(str(error)))
    result = {}
    for method, own in scores.items():
        better = estimate(probability_of_improvement, own, scores[reference])
        result[method] = estimate(interquartile_mean, own), Estimate(math.nan) if method == reference else better
    digits = 1 if max(abs(middle.value) for middle, _ in result.values()) > 100 else 3
    rows = [["method", "tasks", "seeds", "IQM", "95 % interval", f"P(better than {reference})", "95 % interval"]]
    for method, estimates in result.items():
        seeds, count = map(str, scores[method].shape)
        rows.append([method, count, seeds])
        for (value, *interval), decimals in zip(estimates, (digits, 2), strict=True):
            low, high = (number(end, decimals) for end in interval)
            rows[-1] += [number(value, decimals), "–" if math.isnan(interval[0]) else f"{low} to {high}"]
    note = (
        f"score: {'normalized ' if scales[0] else ''}{options.measure}; IQM: mean of all runs without the best and the"
        " worst quarter; P: that a run is better than one of the reference on the same task; intervals: bootstrap,"
        f" stratified by task; – : fewer than {_MINIMUM_RUNS} runs, seeds of all tasks together"
    )
    if len(tasks) > 1 and not scales[0]:
        note += "\nwithout =LOW:HIGH the task with the largest scores counts most"
    runs = pd.concat([task.loc[list(scores)] for task in tasks], keys=list(map(str, folders)), names=["task"])
    deliver(options.output, [rows], {"runs.csv": partial(runs.to_csv, float_format="%.6g")}, note)
    return result


def read_task(word: str, measure: str) -> tuple[Path, str, pd.Series]:
    """Read `FOLDER` or `FOLDER=LOW:HIGH`: folder, `LOW:HIGH` or "", and the scores of a comparison by method, seed."""
    folder, equals, scale = (word, "", "") if Path(word).is_dir() or "=" not in word else word.rpartition("=")
    path = Path(folder, "results.csv")
    try:
        low, high = map(float, scale.split(":")) if equals else (0.0, 1.0)
    except ValueError:
        raise ValueError(f"{word} is not a folder; or else after = there must be LOW:HIGH, got {scale!r}") from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"{word}: LOW must be less than HIGH, both finite")
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
        check_name(method, path)
    scores = rows.set_index(["method", "seed"])[measure]
    if (twice := scores.index[scores.index.duplicated()]).size:
        raise ValueError(f"{path} has {twice[0][0]} seed {twice[0][1]} twice")
    return path.parent, scale, (scores - low) / (high - low)


def scores_of(
    folders: Sequence[Path], tasks: Sequence[pd.Series], methods: Sequence[str] | None
) -> Mapping[str, np.ndarray]:
    """Return the scores by method, `(runs, tasks)`."""
    of_tasks = [list(task.index.unique("method")) for task in tasks]
    names = methods or [name for name in of_tasks[0] if all(name in of_task for of_task in of_tasks)]
    if not names:
        raise ValueError("no method is in all of the tasks")
    scores = {}
    for name in dict.fromkeys(names):
        columns = []
        for folder, task, there in zip(folders, tasks, of_tasks, strict=True):
            if name not in there:
                raise ValueError(f"{folder} has no {name}; it has {' '.join(there)}")
            columns.append(column := task[name])
            if (bad := column[~np.isfinite(column)]).size:
                raise ValueError(
                    f"{name} has no finite score with seed {bad.index[0]} in {folder} (--methods leaves it out)"
                )
        if len(set(map(len, columns))) > 1:
            counts = ", ".join(f"{len(column)} in {folder}" for folder, column in zip(folders, columns, strict=True))
            raise ValueError(f"{name} must have as many seeds in each task (--methods leaves it out): {counts}")
        scores[name] = np.stack(columns, axis=1)
    return scores


def estimate(statistic: Callable[..., np.ndarray], *scores: np.ndarray) -> Estimate:
    """Return a statistic of scores, `(runs, tasks)` each, with an interval if there are enough runs."""
    value = float(statistic(*scores))
    if any(len(own) < 2 or own.size < _MINIMUM_RUNS for own in scores):
        return Estimate(value)
    drawn = (resampled(own, RESAMPLES, seed) for seed, own in enumerate(scores))
    return Estimate(value, *map(float, percentiles(statistic(*drawn))))
