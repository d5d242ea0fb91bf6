"""The table, the CSV and the picture of a comparison."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator

from lightning_fire.compare.history import History, Series

Histories = Mapping[str, Sequence[History]]  # by method, one for each seed

COLUMNS = {
    "after_event": "accuracy just after the event",
    "final": "final accuracy",
    "average": "average accuracy at the end of a chunk",
    "dfi_before": "normalised DfI before",
    "dfi_after": "normalised DfI after",
    "sfe": "SFE / ‖W‖²",
}


def numbers(history: History) -> dict[str, float]:
    """Reduce a run to the `COLUMNS` of the table.

    Args:
        history: The run.

    Returns:
        By column; measures of events are means over the chunks but the first.
    """
    at_end = history.last_in_chunk(history.accuracy)
    before = history.last_in_chunk(history.dfi)[:-1].mean() if len(at_end) > 1 else np.nan
    return {
        "after_event": _mean(history.at_new_data),
        "final": at_end[-1],
        "average": at_end.mean(),
        "dfi_before": before,
        "dfi_after": before if history.dfi_after is None else _mean(history.dfi_after),
        "sfe": 0.0 if history.sfe is None else _mean(history.sfe),
    }


def table(histories: Histories) -> str:
    """Format the comparison for a terminal: mean ± standard deviation over the seeds.

    Args:
        histories: The runs.
    """
    rows = [["method", "seeds", *(["after the event", "final accuracy", "average", "DfI before → after", "SFE/‖W‖²"])]]
    for method, runs in histories.items():
        of = {column: [numbers(run)[column] for run in runs] for column in COLUMNS}
        spread = [f"{np.mean(of[c]):.3f} ± {_std(of[c]):.3f}" for c in ("after_event", "final", "average")]
        dfi = f"{np.mean(of['dfi_before']):.3f} → {np.mean(of['dfi_after']):.3f}"
        rows.append([method, str(len(runs)), *spread, dfi, f"{np.mean(of['sfe']):.3f}"])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "─" * max(map(len, lines)), *lines[1:]])


def write_csv(histories: Histories, path: Path) -> None:
    """Write the numbers of every run.

    Args:
        histories: The runs.
        path: The file.
    """
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["method", "run", *COLUMNS])
        for method, runs in histories.items():
            for index, run in enumerate(runs):
                values = numbers(run)
                writer.writerow([method, index, *(f"{values[column]:.6g}" for column in COLUMNS)])


def draw(histories: Histories, path: Path, title: str) -> None:
    """Draw accuracy and deviation from isometry over training: mean over the seeds, standard deviation as a band.

    Every chunk of data is equally wide; the dashed lines are where new data arrives and a method acts. The value on
    such a line is that just after the method has acted. The axis of accuracy covers the values at which chunks end,
    where methods differ by little: the drop after an event may go below it.

    Args:
        histories: The runs.
        path: The picture, PNG.
        title: Its title.
    """
    figure, (top, bottom) = plt.subplots(
        2, 1, figsize=(9, 7.5), sharex=True, height_ratios=(2, 1), layout="constrained"
    )
    for (method, runs), color in zip(histories.items(), plt.cm.tab10.colors * 3, strict=False):
        final = [run.accuracy[1][-1] for run in runs]
        label = f"{method}  {np.mean(final):.3f} ± {_std(final):.3f}"
        _draw_band(top, runs, [run.accuracy_with_events() for run in runs], color, label)
        _draw_band(bottom, runs, [run.dfi_with_events() for run in runs], color, method)
    every = [run for runs in histories.values() for run in runs]
    chunks = len(every[0].starts) - 1
    for axis in (top, bottom):
        axis.set_xlim(0, chunks)
        axis.grid(alpha=0.25)
        for chunk in range(1, chunks):
            axis.axvline(chunk, color="black", linestyle="--", linewidth=1, alpha=0.5)
    ends = np.concatenate([run.last_in_chunk(run.accuracy) for run in every])
    best = max(run.accuracy[1].max() for run in every)
    top.set_ylim(ends.min() - 0.5 * (best - ends.min()) - 1e-3, best + 0.05 * (best - ends.min()) + 1e-3)
    top.set_title(title)
    top.set_ylabel("test accuracy")
    top.legend(loc="lower right", title="final accuracy")
    bottom.set_yscale("log")
    bottom.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
    for ticks in (bottom.yaxis.set_major_formatter, bottom.yaxis.set_minor_formatter):
        ticks("{x:.3g}")
    bottom.set_ylabel("normalised DfI")
    bottom.set_xlabel("chunks of data (all epochs of a chunk between two dashed lines)")
    bottom.set_xticks(range(chunks + 1))
    figure.savefig(path, dpi=140)
    plt.close(figure)


def _draw_band(axis: Axes, runs: Sequence[History], curves: Sequence[Series], color: object, label: str) -> None:
    x = runs[0].chunk_position(curves[0][0])
    y = np.stack([values for _, values in curves])
    axis.plot(x, y.mean(0), label=label, color=color, linewidth=1.6)
    axis.fill_between(x, y.mean(0) - y.std(0), y.mean(0) + y.std(0), color=color, alpha=0.2, linewidth=0)


def _mean(values: np.ndarray) -> float:
    return float(np.mean(values)) if len(values) else float("nan")


def _std(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
