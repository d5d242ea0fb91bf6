"""Figure of a diagnosis."""

from collections.abc import Sequence
from math import isfinite
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from lightning_fire.atomic import atomic_file
from lightning_fire.checkpoints.diagnose import Diagnosis
from lightning_fire.printable import printable

_ROW = 0.2  # inches
_MOST_PIXELS = 30_000  # high; half of the limit of the drawing library
_BLUE, _ORANGE, _GREY = "#2c6fad", "#d9822b", "#9db8cf"


def draw(rows: Sequence[Diagnosis], path: Path, title: str) -> None:
    """Draw the spread of the singular values, DfI and SFE of each weight, one row per weight."""
    height = 1.4 + _ROW * len(rows)
    figure, (spread, deviation, cost) = plt.subplots(
        1, 3, figsize=(12, height), sharey=True, layout="constrained", width_ratios=[3, 1.5, 1.5]
    )
    for position, row in enumerate(rows):  # all, the middle 80 %, the median
        if row.health is None or not row.health.quantiles[-1]:
            continue
        floor = 1e-12 * row.health.quantiles[-1]  # a logarithmic axis has no zero
        smallest, tenth, median, ninetieth, largest = (max(value, floor) for value in row.health.quantiles)
        spread.plot([smallest, largest], [position, position], color=_GREY, linewidth=1.2, zorder=1)
        spread.plot([tenth, ninetieth], [position, position], color=_BLUE, linewidth=4, solid_capstyle="butt", zorder=2)
        spread.plot(median, position, "o", color="white", markeredgecolor=_BLUE, markersize=4, zorder=3)
    spread.set_xscale("log")
    spread.set_xlabel("singular values: all, middle 80 %, median")
    for axes, metric, color, label in (
        (deviation, "dfi", _BLUE, "deviation from isometry\n(normalised DfI)"),
        (cost, "sfe", _ORANGE, "change by FIRE\n(SFE / ‖W‖²)"),
    ):
        values = [row.value(metric) for row in rows]
        axes.barh(range(len(rows)), [value if isfinite(value) else 0.0 for value in values], color=color, height=0.7)
        for position, value in enumerate(values):
            if not isfinite(value):
                axes.text(0, position, " not finite", va="center", fontsize=7)
        axes.set_xlabel(label)
    for axes in (spread, deviation, cost):
        axes.grid(axis="x", alpha=0.3)
    spread.set_yticks(range(len(rows)), [printable(row.name) for row in rows], fontsize=7, parse_math=False)
    spread.set_ylim(len(rows) - 0.4, -0.6)
    figure.suptitle(title, parse_math=False)
    try:
        with atomic_file(path) as part:
            dots = min(130, int(_MOST_PIXELS / height))
            figure.savefig(part, format=path.suffix.removeprefix(".") or "png", dpi=dots)
    finally:
        plt.close(figure)
