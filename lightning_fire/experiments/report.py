"""The table, the CSV and the picture of a comparison."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator

from lightning_fire.experiments.history import History, Series, epochs_to
from lightning_fire.recipe.recipe import VANILLA

Histories = Mapping[str, Mapping[int, History]]  # by method and seed
Numbers = Mapping[str, Mapping[int, Mapping[str, float]]]  # by method, seed and column
NOTE = (
    "accuracies: on the test set, mean ± standard deviation (n - 1) over the seeds; first epoch: after an event; area:"
    " mean of all epochs since the first event; epochs to it: in the last chunk, until the reference's final accuracy;"
    " DfI: normalised deviation from isometry"
)

NEVER_ACTED = "never acted"
LOWEST_DFI = 1e-4  # end of the axis: exact projections have 1e-13
MINUS = "minus: difference with the same seed, its mean and 95 % Student-t interval"

COLUMNS = {
    "after_event": "accuracy just after the event",
    "final": "final accuracy",
    "average": "average accuracy at the end of a chunk",
    "first_epoch_after": "accuracy one epoch after the event",
    "area": "mean accuracy of all epochs since the first event",
    "epochs_to_reference": "epochs until the final accuracy of the reference",
    "dfi_before": "normalised DfI before",
    "dfi_after": "normalised DfI after",
    "sfe": "SFE / ‖W‖²",
    "lambda_max_before": "largest eigenvalue of the Hessian before",
    "lambda_max_after": "largest eigenvalue of the Hessian after",
    "drop": "accuracy lost at once",
    "recovery": "epochs until it is made good",
    "online_first": "online accuracy in the first fifth of the tasks",
    "online_last": "online accuracy in the last fifth of the tasks",
    "test_last": "accuracy at the end of a task in the last fifth of the tasks",
    "dormant_last": "fraction of dormant units in the last fifth of the tasks",
}


def numbers(history: History, target: float = float("nan")) -> dict[str, float]:
    """Reduce a run to the `COLUMNS` of the table; NaN: the run does not have it.

    Measures of events are means over the chunks but the first, but `epochs_to_reference` is of the last chunk alone;
    epochs are those with a validation.
    """
    at_end = history.last_in_chunk(history.accuracy)
    _, *later = history.in_chunks(history.accuracy)
    idle = history.last_in_chunk(history.dfi)[:-1]  # a method without events leaves the weights as they are
    return {
        "after_event": mean(history.at_new_data),
        "final": at_end[-1],
        "average": mean(at_end),
        "first_epoch_after": mean([chunk[0] for chunk in later if len(chunk)]),
        "area": mean(np.concatenate([[], *later])),
        "epochs_to_reference": epochs_to(target, later[-1]) if later and not np.isnan(target) else float("nan"),
        "dfi_before": mean(idle if history.dfi_before is None else history.dfi_before),
        "dfi_after": mean(idle if history.dfi_after is None else history.dfi_after),
        "sfe": mean(history.sfe),
        "lambda_max_before": mean(history.lambda_max_before),
        "lambda_max_after": mean(history.lambda_max_after),
        "drop": mean(history.drops()),
        "recovery": mean(history.recoveries()),
        **stream_numbers(history),
    }


def stream_numbers(history: History) -> dict[str, float]:
    """Return the columns that only streams have: means over the first and the last fifth of the tasks, at least one."""
    if history.online is None:
        return dict.fromkeys(("online_first", "online_last", "test_last", "dormant_last"), float("nan"))
    online, tasks = history.online[1], max(1, round(len(history.online[1]) / 5))
    dormant = [] if history.dormant is None else history.last_in_chunk(history.dormant)[-tasks:]
    return {
        "online_first": mean(online[:tasks]),
        "online_last": mean(online[-tasks:]),
        "test_last": mean(history.last_in_chunk(history.accuracy)[-tasks:]),
        "dormant_last": mean(dormant),
    }


def all_numbers(histories: Histories, reference: str) -> dict[str, dict[int, dict[str, float]]]:
    """Return the `numbers` of each run, by method and seed."""
    targets = {seed: numbers(run)["final"] for seed, run in histories.get(reference, {}).items()}
    return {
        method: {seed: numbers(run, targets.get(seed, float("nan"))) for seed, run in runs.items()}
        for method, runs in histories.items()
    }


def reference_of(name: str | None, methods: Sequence[str]) -> str:
    """Return the method that the others are compared with."""
    reference = name or (VANILLA if VANILLA in methods else methods[0])
    if reference not in methods:
        raise ValueError(f"--reference {reference} is none of the methods: {' '.join(methods)}")
    return reference


def difference(values: Mapping[int, float], reference: Mapping[int, float]) -> tuple[float, float, float]:
    """Return the mean paired difference to a reference, and its 95 % Student-t interval.

    Runs of one seed share data and initial weights: their difference varies less than they do. The interval is
    mean ± t·s/√n, of n differences with standard deviation s (n - 1), and t the 97.5 % quantile of n - 1 degrees of
    freedom.

    Example:
        >>> [round(number, 3) for number in difference({0: 1.1, 1: 2.2, 2: 3.3}, {0: 1.0, 1: 2.0, 2: 3.0})]
        [0.2, -0.048, 0.448]
    """
    from scipy.special import stdtrit  # 0.15 s that other commands need not wait for

    pairs = np.array([(values[seed], reference[seed]) for seed in values if seed in reference])
    if len(pairs) < 2 or not np.isfinite(pairs).all():
        return float("nan"), float("nan"), float("nan")
    each = pairs[:, 0] - pairs[:, 1]
    half = stdtrit(len(each) - 1, 0.975) * each.std(ddof=1) / np.sqrt(len(each))
    return float(each.mean()), float(each.mean() - half), float(each.mean() + half)


def difference_cell(every: Numbers, method: str, reference: str, digits: int = 3, column: str = "final") -> str:
    """Format the `difference` of a number to a reference.

    It is `0` if all seeds equal the reference, a dash with fewer than two finite pairs.
    """
    middle, low, high = difference(of_column(every, method, column), of_column(every, reference, column))
    if np.isnan(middle):
        return "–"
    return "0" if low == high == 0 else f"{middle:+.{digits}f} ({low:+.{digits}f} to {high:+.{digits}f})"


def never_acted(runs: Mapping[str, Mapping[int, Any]], method: str, *curves: str) -> bool:
    """Return whether the curves of a method are, with each seed, those of vanilla bit for bit.

    Logged events do not show this: ReDo logs an event each time it looks, regularisers and Muon may log none.
    """
    vanilla = runs.get(VANILLA, {})
    return method != VANILLA and all(
        seed in vanilla and np.array_equal(getattr(run, curve), getattr(vanilla[seed], curve), equal_nan=True)
        for seed, run in runs[method].items()
        for curve in curves
    )


def of_column(every: Numbers, method: str, column: str) -> dict[int, float]:
    """Return one number of each run of a method, by seed."""
    return {seed: values.get(column, float("nan")) for seed, values in every.get(method, {}).items()}


def table(histories: Histories, reference: str) -> str:
    """Format the comparison for a terminal: mean ± standard deviation (n - 1) over the seeds."""
    minus = f"minus {reference} (95 %)"
    titles = ["first epoch", "area", "final accuracy", minus, "epochs to it", "DfI before → after", "SFE/‖W‖²"]
    rows = [["method", "seeds", *titles]]
    every = all_numbers(histories, reference)
    for method, runs in every.items():
        of = {column: list(of_column(every, method, column).values()) for column in COLUMNS}
        accuracies = [with_spread(of[column]) for column in ("first_epoch_after", "area", "final")]
        compared = [difference_cell(every, method, reference), when_reached(of["epochs_to_reference"], digits=1)]
        dfi = f"{number(mean(of['dfi_before']))} → {number(mean(of['dfi_after']))}"
        if never_acted(histories, method, "accuracy", "dfi"):
            dfi = NEVER_ACTED
        rows.append([method, str(len(runs)), *accuracies, *compared, dfi, number(mean(of["sfe"]))])
    return aligned(rows)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Align the cells of a table, with a line under its head."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "─" * max(map(len, lines)), *lines[1:]])


def write_csv(histories: Histories, reference: str, path: Path) -> None:
    """Write the numbers of every run; what it does not have stays empty."""
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["method", "seed", *COLUMNS])
        for method, runs in all_numbers(histories, reference).items():
            for seed, values in runs.items():
                writer.writerow([method, seed, *_cells(values[column] for column in COLUMNS)])


def write_summary(histories: Histories, reference: str, path: Path) -> None:
    """Write mean and standard deviation (n - 1) of each number, and its `difference` to the reference, a line each."""
    every = all_numbers(histories, reference)
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        names = ["method", "measure", "seeds", "mean", "std", "reference", "difference", "low_95", "high_95"]
        writer.writerow(names)
        for method in every:
            for column in COLUMNS:
                of_seeds = of_column(every, method, column)
                values = [value for value in of_seeds.values() if not np.isnan(value)]
                if values:
                    known = len(values) > 1 and np.isfinite(values).all()
                    spread = np.std(values, ddof=1) if known else np.nan
                    less = difference(of_seeds, of_column(every, reference, column))
                    cells = [*_cells([np.mean(values), spread]), reference, *_cells(less)]
                    writer.writerow([method, column, len(values), *cells])


def _cells(values: Iterable[float]) -> list[str]:
    return ["" if np.isnan(value) else f"{value:.6g}" for value in values]


def colors(number: int) -> list[str]:
    """Return colours that are told apart, as hex strings."""
    pairs = [matplotlib.colors.to_hex(color) for color in plt.cm.tab20.colors]
    return [([*pairs[::2], *pairs[1::2]] * (number // 20 + 1))[i] for i in range(number)]


class Band(NamedTuple):
    """Mean and standard deviation (n - 1) of curves, by place."""

    place: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray


def band(runs: Sequence[History], curves: Sequence[Series]) -> Band:
    """Average curves at all places where any of them has a point."""
    return mean_curve([(run.chunk_position(steps), y) for run, (steps, y) in zip(runs, curves, strict=True)])


def mean_curve(curves: Sequence[Series]) -> Band:
    """Average curves at all places where any has a point; each counts between its ends, where it is a number."""
    x = np.unique(np.concatenate([places for places, _ in curves]))
    y = np.ma.masked_invalid([np.interp(x, *curve, left=np.nan, right=np.nan) for curve in curves])
    deviation = np.ma.filled(y.std(axis=0, ddof=1), 0.0)  # 0 of a single one
    return Band(x, np.ma.filled(y.mean(axis=0), np.nan), deviation)


def draw(histories: Histories, path: Path, title: str) -> None:
    """Draw accuracy and deviation from isometry over training: mean and standard deviation (n - 1) over the seeds.

    Every chunk of data is equally wide; the dashed lines are where new data arrives and a method acts. The value on
    such a line is that just after the method has acted. The axis of accuracy covers the values at which chunks end,
    where methods differ by little: the drop after an event may go below it. That of the deviation ends at 1e-4.
    """
    figure, (top, bottom) = plt.subplots(
        2, 1, figsize=(9 if len(histories) <= 6 else 12, 7.5), sharex=True, height_ratios=(2, 1), layout="constrained"
    )
    for (method, by_seed), color in zip(histories.items(), colors(len(histories)), strict=True):
        runs = list(by_seed.values())
        draw_band(top, band(runs, [run.accuracy_with_events() for run in runs]), color, label_of(method, runs))
        draw_band(bottom, band(runs, [run.dfi_with_events() for run in runs]), color, method)
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
    bottom.set_ylim(bottom=max(LOWEST_DFI, bottom.get_ylim()[0]))
    bottom.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
    for ticks in (bottom.yaxis.set_major_formatter, bottom.yaxis.set_minor_formatter):
        ticks("{x:.3g}")
    bottom.set_ylabel("normalised DfI")
    bottom.set_xlabel("chunks of data (all epochs of a chunk between two dashed lines)")
    bottom.set_xticks(range(chunks + 1))
    figure.savefig(path, dpi=140, format="png")
    plt.close(figure)


def label_of(method: str, runs: Sequence[History], column: str = "final") -> str:
    """Return the method with one of its numbers."""
    return f"{method}  {with_spread([numbers(run)[column] for run in runs])}"


def accuracy_range(runs: Sequence[History]) -> tuple[float, float]:
    """Return the range of accuracies at the ends of chunks, with room below for drops."""
    worst = np.nanmin(np.concatenate([run.last_in_chunk(run.accuracy) for run in runs]))
    best = max(run.accuracy[1].max() for run in runs)
    return float(worst - 0.5 * (best - worst) - 1e-3), float(best + 0.05 * (best - worst) + 1e-3)


def draw_band(axis: Axes, curve: Band, color: object, label: str) -> None:
    """Draw a mean as a line, and mean ± standard deviation as the area around it."""
    label = f" {label}" if label.startswith("_") else label  # matplotlib would leave it out of the legend
    axis.plot(curve.place, curve.mean, label=label, color=color, linewidth=1.6)
    low, high = curve.mean - curve.deviation, curve.mean + curve.deviation
    axis.fill_between(curve.place, low, high, color=color, alpha=0.2, linewidth=0)


def with_spread(values: Sequence[float], digits: int = 3) -> str:
    """Format mean and standard deviation (n - 1), which one value does not have."""
    known = len(values) > 1 and not np.isnan(values).any()
    spread = f" ± {number(np.std(values, ddof=1), digits)}" if known else ""
    return number(mean(values), digits) + spread


def when_reached(values: Sequence[float], digits: int = 0) -> str:
    """Format how long the runs took that got there, and how many these are where not all did."""
    known = [value for value in values if not np.isnan(value)]
    there = [value for value in known if np.isfinite(value)]
    if not there:
        return "never" if known else "–"
    return number(mean(there), digits) + ("" if there == known else f" ({len(there)} of {len(known)})")


def number(value: float, digits: int = 3) -> str:
    """Format a number; NaN as a dash."""
    return "–" if np.isnan(value) else f"{value:.{digits}f}"


def mean(values: Sequence[float] | None) -> float:
    """Return the mean of what is there; NaN of nothing."""
    if values is None:
        return float("nan")
    there = np.asarray(values)[~np.isnan(values)] if len(values) else []
    return float(np.mean(there)) if len(there) else float("nan")
