"""The table, the CSV and the picture of a comparison."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator

from lightning_fire.compare.history import History, Series
from lightning_fire.compare.stratified import mean_of_all, percentiles, resampled

Histories = Mapping[str, Mapping[int, History]]  # by method and seed

COLUMNS = {
    "after_event": "accuracy just after the event",
    "final": "final accuracy",
    "average": "average accuracy at the end of a chunk",
    "dfi_before": "normalised DfI before",
    "dfi_after": "normalised DfI after",
    "sfe": "SFE / ‖W‖²",
    "lambda_max_before": "largest eigenvalue of the Hessian before",
    "lambda_max_after": "largest eigenvalue of the Hessian after",
    "drop": "accuracy lost at once",
    "recovery": "epochs until it is made good",
}


def numbers(history: History) -> dict[str, float]:
    """Reduce a run to the `COLUMNS` of the table.

    Args:
        history: The run.

    Returns:
        By column; measures of events are means over the chunks but the first; NaN: the run does not have it.
    """
    at_end = history.last_in_chunk(history.accuracy)
    idle = history.last_in_chunk(history.dfi)[:-1]  # a method without events leaves the weights as they are
    return {
        "after_event": mean(history.at_new_data),
        "final": at_end[-1],
        "average": mean(at_end),
        "dfi_before": mean(idle if history.dfi_before is None else history.dfi_before),
        "dfi_after": mean(idle if history.dfi_after is None else history.dfi_after),
        "sfe": mean(history.sfe),
        "lambda_max_before": mean(history.lambda_max_before),
        "lambda_max_after": mean(history.lambda_max_after),
        "drop": mean(history.drops()),
        "recovery": mean(history.recoveries()),
    }


def interval(values: Sequence[float], level: float = 0.95, resamples: int = 10_000) -> tuple[float, float]:
    """Return a bootstrap interval of the mean: percentiles of the means of samples drawn with replacement.

    That is rliable's interval (Agarwal et al., NeurIPS 2021) of a single task. Of few values it is too narrow: of three
    it reaches from the least to the greatest.

    Args:
        values: One number for each seed.
        level: Share of the means inside.
        resamples: Samples drawn, always the same ones.

    Returns:
        Its two ends; NaN of fewer than two values, or with a NaN among them.

    Example:
        >>> interval([1.0, 2.0, 6.0])
        (1.0, 6.0)
    """
    if len(values) < 2:
        return float("nan"), float("nan")
    low, high = percentiles(mean_of_all(resampled(np.asarray(values)[:, None], resamples)), level)
    return float(low), float(high)


def table(histories: Histories) -> str:
    """Format the comparison for a terminal: mean ± standard deviation (n - 1) over the seeds.

    Args:
        histories: The runs.
    """
    titles = ["after the event", "final accuracy", "95 % interval", "average", "DfI before → after", "SFE/‖W‖²"]
    rows = [["method", "seeds", *titles]]
    for method, runs in histories.items():
        of = {column: [numbers(run)[column] for run in runs.values()] for column in COLUMNS}
        after, final, average = (with_spread(of[column]) for column in ("after_event", "final", "average"))
        ends = interval(of["final"])
        inside = "–" if np.isnan(ends).any() else " to ".join(map(number, ends))
        dfi = f"{number(mean(of['dfi_before']))} → {number(mean(of['dfi_after']))}"
        rows.append([method, str(len(runs)), after, final, inside, average, dfi, number(mean(of["sfe"]))])
    return aligned(rows)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Align the cells of a table, with a line under its head.

    Args:
        rows: Rows of equally many cells, the first of them the head.
    """
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "─" * max(map(len, lines)), *lines[1:]])


def write_csv(histories: Histories, path: Path) -> None:
    """Write the numbers of every run; what it does not have stays empty.

    Args:
        histories: The runs.
        path: The file.
    """
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["method", "seed", *COLUMNS])
        for method, runs in histories.items():
            for seed, run in runs.items():
                values = numbers(run)
                cells = ("" if np.isnan(values[column]) else f"{values[column]:.6g}" for column in COLUMNS)
                writer.writerow([method, seed, *cells])


def write_summary(histories: Histories, path: Path) -> None:
    """Write mean, standard deviation (n - 1) and the 95 % bootstrap interval of each number, a line each.

    Args:
        histories: The runs.
        path: The CSV file.
    """
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["method", "measure", "seeds", "mean", "std", "low_95", "high_95"])
        for method, runs in histories.items():
            for column in COLUMNS:
                values = [value for run in runs.values() if not np.isnan(value := numbers(run)[column])]
                if values:
                    known = len(values) > 1 and np.isfinite(values).all()
                    spread = np.std(values, ddof=1) if known else np.nan
                    cells = (np.mean(values), spread, *interval(values))
                    writer.writerow([method, column, len(values), *("" if np.isnan(c) else f"{c:.6g}" for c in cells)])


def colors(number: int) -> list[str]:
    """Return colours that are told apart, as hex strings.

    Args:
        number: How many.
    """
    pairs = [matplotlib.colors.to_hex(color) for color in plt.cm.tab20.colors]
    return [([*pairs[::2], *pairs[1::2]] * (number // 20 + 1))[i] for i in range(number)]


class Band(NamedTuple):
    """A curve over the places in the chunks of data, each of them 1 wide: mean and standard deviation (n - 1)."""

    place: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray


def band(runs: Sequence[History], curves: Sequence[Series]) -> Band:
    """Average curves at all places where any of them has a point.

    Args:
        runs: The runs.
        curves: A curve of each.
    """
    places = [run.chunk_position(steps) for run, (steps, _) in zip(runs, curves, strict=True)]
    x = np.unique(np.concatenate(places))
    y = np.stack(
        [
            np.interp(x, place, values, left=np.nan, right=np.nan)
            for place, (_, values) in zip(places, curves, strict=True)
        ]
    )
    mean = np.nanmean(y, axis=0)
    count = (~np.isnan(y)).sum(axis=0)
    return Band(x, mean, np.sqrt(np.nansum((y - mean) ** 2, axis=0) / np.maximum(count - 1, 1)))


def draw(histories: Histories, path: Path, title: str) -> None:
    """Draw accuracy and deviation from isometry over training: mean and standard deviation (n - 1) over the seeds.

    Every chunk of data is equally wide; the dashed lines are where new data arrives and a method acts. The value on
    such a line is that just after the method has acted. The axis of accuracy covers the values at which chunks end,
    where methods differ by little: the drop after an event may go below it.

    Args:
        histories: The runs.
        path: The picture, PNG whatever its name.
        title: Its title.
    """
    figure, (top, bottom) = plt.subplots(
        2, 1, figsize=(9 if len(histories) <= 6 else 12, 7.5), sharex=True, height_ratios=(2, 1), layout="constrained"
    )
    for (method, by_seed), color in zip(histories.items(), colors(len(histories)), strict=True):
        runs = list(by_seed.values())
        _draw_band(top, band(runs, [run.accuracy_with_events() for run in runs]), color, label_of(method, runs))
        _draw_band(bottom, band(runs, [run.dfi_with_events() for run in runs]), color, method)
    every = [run for runs in histories.values() for run in runs.values()]
    chunks = max(len(run.starts) for run in every) - 1
    for axis in (top, bottom):
        axis.set_xlim(0, chunks)
        axis.grid(alpha=0.25)
        for chunk in range(1, chunks):
            axis.axvline(chunk, color="black", linestyle="--", linewidth=1, alpha=0.5)
    top.set_ylim(*accuracy_range(every))
    top.set_title(title, parse_math=False)
    top.set_ylabel("test accuracy")
    if len(histories) <= 6:
        legend = top.legend(loc="lower right", title="final accuracy")
    else:  # it would hide the curves
        legend = figure.legend(*top.get_legend_handles_labels(), loc="outside right upper", title="final accuracy")
    for entry in legend.get_texts():
        entry.set_parse_math(False)
    bottom.set_yscale("log")
    bottom.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
    for ticks in (bottom.yaxis.set_major_formatter, bottom.yaxis.set_minor_formatter):
        ticks("{x:.3g}")
    bottom.set_ylabel("normalised DfI")
    bottom.set_xlabel("chunks of data (all epochs of a chunk between two dashed lines)")
    bottom.set_xticks(range(chunks + 1))
    figure.savefig(path, dpi=140, format="png")
    plt.close(figure)


def label_of(method: str, runs: Sequence[History]) -> str:
    """Return the method with its final accuracy.

    Args:
        method: Its name.
        runs: Its runs.
    """
    return f"{method}  {with_spread([numbers(run)['final'] for run in runs])}"


def accuracy_range(runs: Sequence[History]) -> tuple[float, float]:
    """Return the range of accuracies at the ends of chunks, with room below for drops.

    Args:
        runs: All runs of the picture.
    """
    worst = np.nanmin(np.concatenate([run.last_in_chunk(run.accuracy) for run in runs]))
    best = max(run.accuracy[1].max() for run in runs)
    return float(worst - 0.5 * (best - worst) - 1e-3), float(best + 0.05 * (best - worst) + 1e-3)


def _draw_band(axis: Axes, curve: Band, color: object, label: str) -> None:
    label = f" {label}" if label.startswith("_") else label  # matplotlib would leave it out of the legend
    axis.plot(curve.place, curve.mean, label=label, color=color, linewidth=1.6)
    low, high = curve.mean - curve.deviation, curve.mean + curve.deviation
    axis.fill_between(curve.place, low, high, color=color, alpha=0.2, linewidth=0)


def with_spread(values: Sequence[float], digits: int = 3) -> str:
    """Format mean and standard deviation (n - 1), which one value does not have.

    Args:
        values: One number for each seed.
        digits: Digits after the point.
    """
    known = len(values) > 1 and not np.isnan(values).any()
    spread = f" ± {number(np.std(values, ddof=1), digits)}" if known else ""
    return number(mean(values), digits) + spread


def number(value: float, digits: int = 3) -> str:
    """Format a number; NaN as a dash.

    Args:
        value: The number.
        digits: Digits after the point.
    """
    return "–" if np.isnan(value) else f"{value:.{digits}f}"


def mean(values: Sequence[float] | None) -> float:
    """Return the mean of what is there; NaN of nothing.

    Args:
        values: Numbers, NaN among them; None for none.
    """
    if values is None:
        return float("nan")
    there = np.asarray(values)[~np.isnan(values)] if len(values) else []
    return float(np.mean(there)) if len(there) else float("nan")
