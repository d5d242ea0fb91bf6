"""Curves of several methods as a figure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator

from lightning_fire.experiments.logs import Series


@dataclass(frozen=True)
class Panel:
    """Curves of each method, one for each seed, over a common axis.

    Attributes:
        curves: By method.
        x: Label of the axis of positions.
        y: Label of the axis of values.
        labels: Name of each method in the legend. Default: its own name.
        seeds: Draw each seed thin and their mean thick, with the names at the ends; else the mean ± standard deviation.
        low, high: Ends of the axis of values, where they are given; of one that is `log`, at least `low`.
        lines: Positions of vertical lines, with the text beside each.
    """

    curves: Mapping[str, Sequence[Series]]
    x: str
    y: str
    title: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    legend: str = ""
    seeds: bool = False
    log: bool = False
    low: float | None = None
    high: float | None = None
    whole_numbers: bool = False
    lines: Mapping[float, str] = field(default_factory=dict)


class Band(NamedTuple):
    """Mean and standard deviation (n - 1) of curves, by position."""

    place: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray


def band(curves: Sequence[Series]) -> Band:
    """Average curves at the positions of all their points; each counts between its ends, except where it is NaN."""
    x = np.unique(np.concatenate([places for places, _ in curves]))
    y = np.ma.masked_invalid([np.interp(x, *curve, left=np.nan, right=np.nan) for curve in curves])
    deviation = np.ma.filled(y.std(axis=0, ddof=1), 0.0)  # 0 of a single one
    return Band(x, np.ma.filled(y.mean(axis=0), np.nan), deviation)


def colors(names: Sequence[str]) -> dict[str, str]:
    """Return distinguishable colours, as hex strings."""
    pairs = [matplotlib.colors.to_hex(color) for color in plt.cm.tab20.colors]
    wheel = [*pairs[::2], *pairs[1::2]] * (len(names) // 20 + 1)
    return dict(zip(names, wheel, strict=False))


def _methods(panels: Sequence[Panel]) -> list[str]:
    by_size = sorted(panels, key=lambda panel: -len(panel.curves))  # first the methods, then what is in few panels
    return list(dict.fromkeys(method for panel in by_size for method in panel.curves))


def save(figure: Figure, path: Path, form: str) -> None:
    """Write a figure as `png` or `pdf`, equal ones to equal bytes, and close it."""
    with matplotlib.rc_context({"pdf.fonttype": 42}):  # TrueType: many conferences refuse the default, Type 3
        figure.savefig(path, dpi=140, format=form, **({"metadata": {"CreationDate": None}} if form == "pdf" else {}))
    plt.close(figure)


def draw(panels: Sequence[Panel], path: Path, title: str, side_by_side: bool = False, form: str = "png") -> None:
    """Draw panels below each other, the first twice as high, or side by side."""
    taken = colors(_methods(panels))
    few, count = len(taken) <= 8, len(panels)
    size = (0.4 + 3.8 * count, 4.4) if side_by_side else (10 if few else 12, 7.5 if count > 1 else 4.6)
    shape = (1, count) if side_by_side else (count, 1)
    ratios = {} if side_by_side or count == 1 else {"height_ratios": (2, *[1] * (count - 1)), "sharex": True}
    figure, axes = plt.subplots(*shape, figsize=size, layout="constrained", squeeze=False, **ratios)
    for place, (axis, panel) in enumerate(zip(axes.flat, panels, strict=True)):
        _draw_panel(axis, panel, taken, at_ends=few and panel.seeds and place == 0)
        lines = " (thin: each seed; thick: their mean)" if panel.seeds else ""
        axis.set_xlabel(f"{panel.x}{lines}" if side_by_side or place == count - 1 else "")
    named = next((n for n, panel in enumerate(panels) if len(panel.curves) > 1), 0)  # the panel whose names are shown
    if not (few and panels[named].seeds):
        legend = figure.legend(
            *axes.flat[named].get_legend_handles_labels(), loc="outside right upper", title=panels[named].legend
        )
        for entry in legend.get_texts():
            entry.set_parse_math(False)
    figure.suptitle(title, parse_math=False)
    save(figure, path, form)


def _draw_panel(axis: Axes, panel: Panel, taken: Mapping[str, str], at_ends: bool) -> None:
    ends = []
    for method, curves in panel.curves.items():
        label = _legend(panel, method)
        middle = band(curves)
        if panel.seeds:
            for place, values in curves:
                axis.plot(place, values, color=taken[method], linewidth=0.7, alpha=0.45)
        else:
            low, high = middle.mean - middle.deviation, middle.mean + middle.deviation
            axis.fill_between(middle.place, low, high, color=taken[method], alpha=0.2, linewidth=0)
        width = 2.4 if panel.seeds else 1.6
        axis.plot(middle.place, middle.mean, label=label, color=taken[method], linewidth=width)
        ends.append((float(middle.mean[-1]), label, taken[method]))
    for line, (place, text) in enumerate(panel.lines.items()):
        axis.axvline(place, color="black", linestyle="--", linewidth=1, alpha=0.5)
        where = {"xy": (place, 0.97 - 0.06 * line), "xycoords": ("data", "axes fraction"), "ha": "right"}
        axis.annotate(text, **where, parse_math=False)
    axis.set_title(panel.title, parse_math=False)
    axis.set_ylabel(panel.y)
    axis.grid(alpha=0.25)
    if panel.log:
        axis.set_yscale("log")
        axis.set_ylim(bottom=max(panel.low or 0, axis.get_ylim()[0]))
        axis.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
        for ticks in (axis.yaxis.set_major_formatter, axis.yaxis.set_minor_formatter):
            ticks("{x:.3g}")
    else:
        axis.set_ylim(panel.low, panel.high)
    if panel.whole_numbers:
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    if at_ends:
        _label_ends(axis, ends)


def _legend(panel: Panel, method: str) -> str:
    label = panel.labels.get(method, method)
    return f" {label}" if label.startswith("_") else label  # matplotlib would leave it out of the legend


def _label_ends(axis: Axes, ends: Sequence[tuple[float, str, str]]) -> None:
    """Write names beside the ends of curves, far enough apart to be read."""
    gap = 0.055 * np.diff(axis.get_ylim())[0]
    place = -np.inf
    for height, label, color in sorted(ends):
        place = max(height, place + gap)
        where = {"xy": (1.01, place), "xycoords": ("axes fraction", "data")}
        axis.annotate(label, **where, color=color, va="center", annotation_clip=False, parse_math=False)
