"""The figure of a diagnosis."""

from collections.abc import Sequence
from math import isfinite
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from lightning_fire.checkpoints.atomic import atomic_file
from lightning_fire.checkpoints.diagnose import Diagnosis
from lightning_fire.checkpoints.printable import printable

_ROW = 0.2  # inches
_MOST_PIXELS = 30_000  # high; half of what the drawing library can do
_BLUE, _ORANGE, _GREY = "#2c6fad", "#d9822b", "#9db8cf"


def draw(rows: Sequence[Diagnosis], path: Path, title: str) -> None:
    """Draw the spread of the singular values, DfI and SFE of each weight, one in a row."""
    height = 1.4 + _ROW * len(rows)
    figure, (spread, deviation, cost) = plt.subplots(
        1, 3, figsize=(12, height), sharey=True, layout="constrained", width_ratios=[3, 1.5, 1.5]
    )
    _draw_spread(spread, rows)
    _draw_bars(deviation, [row.value("dfi") for row in rows], _BLUE, "deviation from isometry\n(normalised DfI)")
    _draw_bars(cost, [row.value("sfe") for row in rows], _ORANGE, "what FIRE would change\n(SFE / ‖W‖²)")
    spread.set_yticks(range(len(rows)), [printable(row.name) for row in rows], fontsize=7, parse_math=False)
    spread.set_ylim(len(rows) - 0.4, -0.6)
    figure.suptitle(title, parse_math=False)
    try:
        with atomic_file(path) as part:
            dots = min(130, int(_MOST_PIXELS / height))
            figure.savefig(part, format=path.suffix.removeprefix(".") or "png", dpi=dots)
    finally:
        plt.close(figure)


def _draw_spread(axes: Axes, rows: Sequence[Diagnosis]) -> None:
    """A thin line from the smallest singular value to the largest, a thick one over the middle 80 %, the median."""
    for position, row in enumerate(rows):
        if row.health is None or not row.health.quantiles[-1]:
            continue
        floor = 1e-12 * row.health.quantiles[-1]  # a logarithmic axis has no zero
        smallest, tenth, median, ninetieth, largest = (max(value, floor) for value in row.health.quantiles)
        axes.plot([smallest, largest], [position, position], color=_GREY, linewidth=1.2, zorder=1)
        axes.plot([tenth, ninetieth], [position, position], color=_BLUE, linewidth=4, solid_capstyle="butt", zorder=2)
        axes.plot(median, position, "o", color="white", markeredgecolor=_BLUE, markersize=4, zorder=3)
    axes.set_xscale("log")
    axes.set_xlabel("singular values: all, middle 80 %, median")
    axes.grid(axis="x", alpha=0.3)


def _draw_bars(axes: Axes, values: Sequence[float], color: str, label: str) -> None:
    axes.barh(range(len(values)), [value if isfinite(value) else 0.0 for value in values], color=color, height=0.7)
    for position, value in enumerate(values):
        if not isfinite(value):
            axes.text(0, position, " not finite", va="center", fontsize=7)
    axes.set_xlabel(label)
    axes.grid(axis="x", alpha=0.3)
