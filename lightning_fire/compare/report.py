"""The table, the CSV and the picture of a comparison."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from lightning_fire.compare.history import History

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

    Every chunk of data is equally wide; the dashed lines are where new data arrives and a method acts. The accuracy on
    such a line is that just after the method has acted.

    Args:
        histories: The runs.
        path: The picture, PNG.
        title: Its title.
    """
    figure, (top, bottom) = plt.subplots(2, 1, figsize=(9, 7), sharex=True, height_ratios=(2, 1), layout="constrained")
    for (method, runs), color in zip(histories.items(), plt.cm.tab10.colors * 3, strict=False):
        for axis, curves in ((top, [run.accuracy_with_events() for run in runs]), (bottom, [run.dfi for run in runs])):
            x = runs[0].chunk_position(curves[0][0])
            y = np.stack([values for _, values in curves])
            axis.plot(x, y.mean(0), label=method, color=color, linewidth=1.6)
            axis.fill_between(x, y.mean(0) - y.std(0), y.mean(0) + y.std(0), color=color, alpha=0.2, linewidth=0)
    chunks = len(next(iter(histories.values()))[0].starts) - 1
    for axis in (top, bottom):
        axis.set_xlim(0, chunks)
        axis.margins(y=0.04)
        axis.grid(alpha=0.25)
        for chunk in range(1, chunks):
            axis.axvline(chunk, color="black", linestyle="--", linewidth=1, alpha=0.6 if chunks < 12 else 0.25)
    top.set_title(title)
    top.set_ylabel("test accuracy")
    top.legend(loc="lower right")
    bottom.set_yscale("log")
    bottom.set_ylabel("normalised DfI")
    bottom.set_xlabel("chunks of data (all epochs of a chunk between two dashed lines)")
    bottom.set_xticks(range(chunks + 1))
    figure.savefig(path, dpi=140)
    plt.close(figure)


def _mean(values: np.ndarray) -> float:
    return float(np.mean(values)) if len(values) else float("nan")


def _std(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
