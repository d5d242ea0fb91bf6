"""Curves of several methods as a figure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

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

    `seeds`: draw each seed thin and their mean thick, with names at the ends; otherwise the mean ± standard deviation.
    """

    curves: Mapping[str, Sequence[Series]]  # by method
    x: str  # label of the axis of positions
    y: str  # label of the axis of values
    title: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)  # name of each method in the legend; default: its own
    legend: str = ""
    seeds: bool = False
    log: bool = False
    low: float | None = None  # limits of the axis of values; at least `low` if `log`
    high: float | None = None
    whole_numbers: bool = False
    lines: Mapping[float, str] = field(default_factory=dict)  # positions of vertical lines, and the text beside each


def relabelled(panel: Panel, labels: Mapping[str, str]) -> Panel:
    """Return a panel with some methods renamed."""
    names = {method: labels.get(method, method) for method in panel.curves}
    curves = {names[method]: curves for method, curves in panel.curves.items()}
    return replace(
        panel, curves=curves, labels={names[m]: names[m] + text.removeprefix(m) for m, text in panel.labels.items()}
    )


def band(curves: Sequence[Series]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the positions of all points of some curves, and mean and standard deviation (n - 1) at these.

    A curve counts between its ends, except where it is NaN.
    """
    x = np.unique(np.concatenate([positions for positions, _ in curves]))
    y = np.ma.masked_invalid([np.interp(x, *curve, left=np.nan, right=np.nan) for curve in curves])
    deviation = np.ma.filled(y.std(axis=0, ddof=1), 0.0)  # 0 for a single curve
    return x, np.ma.filled(y.mean(axis=0), np.nan), deviation


def colors(names: Sequence[str]) -> dict[str, str]:
    """Return distinguishable colours, as hex strings."""
    pairs = [matplotlib.colors.to_hex(color) for color in matplotlib.colormaps["tab20"](range(20))]
    wheel = [*pairs[::2], *pairs[1::2]] * (len(names) // 20 + 1)
    return dict(zip(names, wheel, strict=False))


def save(figure: Figure, path: Path, form: str) -> None:
    """Write a figure as `png`, `pdf` or `svg`, deterministically, and close it."""
    metadata = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(form)
    # TrueType: many conferences reject the default, Type 3; the salt makes ids in a file deterministic
    with matplotlib.rc_context({"pdf.fonttype": 42, "svg.hashsalt": "lightning-fire"}):
        figure.savefig(path, dpi=140, format=form, metadata=metadata)
    plt.close(figure)


def draw(panels: Sequence[Panel], path: Path, title: str, side_by_side: bool = False, form: str = "png") -> None:
    """Draw panels below each other, the first twice as high, or side by side."""
    by_size = sorted(panels, key=lambda panel: -len(panel.curves))  # first the methods, then entries of few panels
    taken = colors(list(dict.fromkeys(method for panel in by_size for method in panel.curves)))
    few, count = len(taken) <= 8, len(panels)
    if side_by_side:
        figure, axes = plt.subplots(1, count, figsize=(0.4 + 3.8 * count, 4.4), layout="constrained", squeeze=False)
    else:
        size, heights = (10 if few else 12, 7.5 if count > 1 else 4.6), [1 + (count > 1), *[1] * (count - 1)]
        figure, axes = plt.subplots(
            count, 1, figsize=size, layout="constrained", squeeze=False, sharex=True, height_ratios=heights
        )
    for place, (axis, panel) in enumerate(zip(axes.flat, panels, strict=True)):
        _draw_panel(axis, panel, taken, at_ends=few and panel.seeds and place == 0)
        lines = " (thin: each seed; thick: their mean)" if panel.seeds else ""
        axis.set_xlabel(f"{panel.x}{lines}" if side_by_side or place == count - 1 else "")
    named = next((n for n, panel in enumerate(panels) if len(panel.curves) > 1), 0)  # the panel whose names are shown
    if not (few and panels[named].seeds):
        handles, names = axes.flat[named].get_legend_handles_labels()
        legend = figure.legend(handles, names, loc="outside right upper", title=panels[named].legend)
        for entry in legend.get_texts():
            entry.set_parse_math(False)
    figure.suptitle(title, parse_math=False)
    save(figure, path, form)


def _draw_panel(axis: Axes, panel: Panel, taken: Mapping[str, str], at_ends: bool) -> None:
    ends = []
    for method, curves in panel.curves.items():
        label = panel.labels.get(method, method)
        label = f" {label}" if label.startswith("_") else label  # matplotlib would leave it out of the legend
        place, middle, deviation = band(curves)
        if panel.seeds:
            for steps, values in curves:
                axis.plot(steps, values, color=taken[method], linewidth=0.7, alpha=0.45)
        else:
            low, high = middle - deviation, middle + deviation
            axis.fill_between(place, low, high, color=taken[method], alpha=0.2, linewidth=0)
        axis.plot(place, middle, label=label, color=taken[method], linewidth=2.4 if panel.seeds else 1.6)
        ends.append((float(middle[-1]), label, taken[method]))
    for line, (at, text) in enumerate(panel.lines.items()):
        axis.axvline(at, color="black", linestyle="--", linewidth=1, alpha=0.5)
        where = (at, 0.97 - 0.06 * line)
        axis.annotate(text, where, xycoords=("data", "axes fraction"), ha="right", parse_math=False)
    axis.set_title(panel.title, parse_math=False)
    axis.set_ylabel(panel.y)
    axis.grid(alpha=0.25)
    if panel.log:
        axis.set_yscale("log")
        axis.set_ylim(bottom=max(panel.low or 0, axis.get_ylim()[0]))
        axis.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
        axis.yaxis.set_major_formatter("{x:.3g}")
        axis.yaxis.set_minor_formatter("{x:.3g}")
    else:
        axis.set_ylim(panel.low, panel.high)
    if panel.whole_numbers:
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    if at_ends:  # names beside the ends of curves, far enough apart to be read
        lowest = -np.inf
        gap = 0.055 * float(np.diff(axis.get_ylim())[0])
        for height, label, color in sorted(ends):
            lowest = max(height, lowest + gap)
            where, coords = (1.01, lowest), ("axes fraction", "data")
            axis.annotate(
                label, where, xycoords=coords, color=color, va="center", annotation_clip=False, parse_math=False
            )
