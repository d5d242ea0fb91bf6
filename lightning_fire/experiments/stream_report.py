"""The table, the figure and the sentence of a comparison on a stream of tasks."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from lightning_fire.experiments.history import History, Series
from lightning_fire.experiments.report import (
    NEVER_ACTED,
    Histories,
    Numbers,
    aligned,
    all_numbers,
    colors,
    difference,
    difference_cell,
    mean_curve,
    never_acted,
    number,
    of_column,
    with_spread,
)

NOTE = (
    "online: accuracy of each batch before the update with it, mean over the first and last fifth of the tasks\n"
    "test: accuracy on the task's validation data at its end; dormant: fraction of hidden units; both: last fifth\n"
    "all: mean ± standard deviation (n - 1) over the seeds"
)


def is_stream(histories: Histories) -> bool:
    """Return whether all runs have logged online accuracy."""
    return all(run.online is not None for runs in histories.values() for run in runs.values())


def table(histories: Histories, reference: str) -> str:
    """Format the comparison for a terminal: mean ± standard deviation (n - 1) over the seeds."""
    titles = ["online, first", "online, last", f"minus {reference} (95 %)", "test, last", "dormant, last"]
    rows = [["method", "seeds", *titles]]
    every = all_numbers(histories, reference)
    for method, runs in every.items():
        first, last, test, dormant = (
            with_spread(list(of_column(every, method, column).values()))
            for column in ("online_first", "online_last", "test_last", "dormant_last")
        )
        idle = never_acted(histories, method, "accuracy", "online")
        less = NEVER_ACTED if idle else difference_cell(every, method, reference, column="online_last")
        rows.append([method, str(len(runs)), first, last, less, test, dormant])
    return aligned(rows)


def sentence(histories: Histories) -> str:
    """Say in one sentence which methods lost online accuracy from the first fifth of the tasks to the last.

    A method has lost or gained where the 95 % Student-t interval of its change over the seeds does not contain 0.
    """
    every = all_numbers(histories, reference="")
    changes = {method: _change(every, method) for method in every}
    known = {method: change for method, change in changes.items() if not np.isnan(change[0])}
    lost = [_in_points(every, method) for method, (_, _, high) in known.items() if high < 0]
    gained = [_in_points(every, method) for method, (_, low, _) in known.items() if low > 0]
    level = [method for method, (_, low, high) in known.items() if low <= 0 <= high]
    parts = [("lost online accuracy", lost), ("neither lost nor gained", level), ("gained", gained)]
    said = "; ".join(f"{what}: {', '.join(names)}" for what, names in parts if names)
    return said and f"From the first tasks to the last, {said}."


def _change(every: Numbers, method: str) -> tuple[float, float, float]:
    return difference(of_column(every, method, "online_last"), of_column(every, method, "online_first"))


def _in_points(every: Numbers, method: str) -> str:
    first, last = (np.mean(list(of_column(every, method, f"online_{end}").values())) for end in ("first", "last"))
    return f"{method} {100 * (last - first):+.0f} points ({number(first, 2)} to {number(last, 2)})"


def draw(histories: Histories, path: Path, title: str) -> None:
    """Draw online accuracy and the fraction of dormant units by task: each seed thin, the mean of a method thick."""
    few = len(histories) <= 8
    figure, (top, bottom) = plt.subplots(
        2, 1, figsize=(10 if few else 12, 7.5), sharex=True, height_ratios=(2, 1), layout="constrained"
    )
    ends = []
    for (method, by_seed), color in zip(histories.items(), colors(len(histories)), strict=True):
        runs = list(by_seed.values())
        last = _draw_runs(top, [_by_task(run, run.online) for run in runs], color, method)
        ends.append((last, f"{method}  {number(last, 2)}", color))
        if all(run.dormant is not None for run in runs):
            _draw_runs(bottom, [_by_task(run, run.dormant) for run in runs], color, method)
    top.set_title(f"{title}: how well each new task is learned", parse_math=False)
    top.set_ylabel("online accuracy")
    bottom.set_ylabel("dormant units")
    bottom.set_xlabel("task (thin: each seed; thick: their mean)")
    bottom.xaxis.set_major_locator(MaxNLocator(integer=True))
    for axis in (top, bottom):
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.25)
    if few:
        _label_ends(top, ends)
    else:
        for text in figure.legend(*top.get_legend_handles_labels(), loc="outside right upper").get_texts():
            text.set_parse_math(False)
    figure.savefig(path, dpi=140, format="png")
    plt.close(figure)


def _by_task(run: History, series: Series) -> Series:
    """Return a curve over tasks, counted from 1: its last value in each."""
    return np.arange(1, len(run.starts)), run.last_in_chunk(series)


def _draw_runs(axis: Axes, curves: Sequence[Series], color: str, label: str) -> float:
    """Draw one curve for each seed and their mean; return where that ends."""
    for task, values in curves:
        axis.plot(task, values, color=color, linewidth=0.7, alpha=0.45)
    mean = mean_curve(curves)
    axis.plot(mean.place, mean.mean, color=color, linewidth=2.4, label=label)
    return float(mean.mean[-1])


def _label_ends(axis: Axes, ends: Sequence[tuple[float, str, str]]) -> None:
    """Write names beside the ends of curves, far enough apart to be read."""
    gap = 0.055 * np.diff(axis.get_ylim())[0]
    place = -np.inf
    for height, label, color in sorted(ends):
        place = max(height, place + gap)
        where = {"xy": (1.01, place), "xycoords": ("axes fraction", "data")}
        axis.annotate(label, **where, color=color, va="center", annotation_clip=False, parse_math=False)
