"""The table, the CSV files and the picture of a second phase that goes on from several checkpoints of the first."""

import csv
from collections.abc import Mapping
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from lightning_fire.compare.history import Series
from lightning_fire.compare.phase_history import PhaseHistory
from lightning_fire.compare.report import aligned, colors, interval, mean, number, with_spread

Phases = Mapping[str, Mapping[str, Mapping[int, PhaseHistory]]]  # by start, method and seed
Firsts = Mapping[int, Series]  # validation loss of the first phase by seed
Taken = Mapping[str, Mapping[int, float]]  # by start and seed: steps of the first phase after which it was taken

VANILLA = "vanilla"


def columns(phases: Phases) -> list[str]:
    """Return the names of the numbers of a run: losses of each text among them.

    Args:
        phases: The runs.
    """
    texts = [
        text
        for by_method in phases.values()
        for runs in by_method.values()
        for r in runs.values()
        for text in r.by_text
    ]
    return [
        "at_start",
        "final",
        *(f"final_{text}" for text in dict.fromkeys(texts)),
        "steps_to_vanilla",
        "event_seconds",
    ]


def numbers(phases: Phases, start: str, method: str, seed: int) -> dict[str, float]:
    """Reduce a run to numbers.

    Args:
        phases: All runs: those of `vanilla` with the same start and seed say how fast the others are.
        start: Name of the start.
        method: The method.
        seed: The seed.

    Returns:
        `at_start`: validation loss just after the event; `final`: at the end; `final_{text}`: of each text by itself;
        `steps_to_vanilla`: optimizer steps until the loss is at or below the final one of vanilla, Inf if it never is,
        NaN without vanilla; `event_seconds`: time that the method took.
    """
    run = phases[start][method][seed]
    vanilla = phases[start].get(VANILLA, {}).get(seed)
    return {
        "at_start": run.at_start,
        "final": run.final,
        **{f"final_{text}": float(losses[-1]) for text, (_, losses) in run.by_text.items()},
        "steps_to_vanilla": float("nan") if vanilla is None else run.steps_to(vanilla.final),
        "event_seconds": run.event_seconds,
    }


def table(phases: Phases) -> str:
    """Format the comparison for a terminal: mean ± standard deviation (n - 1) over the seeds.

    Args:
        phases: The runs.
    """
    texts = [name for name in columns(phases) if name.startswith("final_")]
    titles = ["loss after the event", "final loss", "95 % interval", *(name.replace("final_", "on ") for name in texts)]
    rows = [["start", "method", "seeds", *titles, "steps to vanilla's"]]
    for start, by_method in phases.items():
        for method, runs in by_method.items():
            every = [numbers(phases, start, method, seed) for seed in runs]
            of = {name: [values.get(name, float("nan")) for values in every] for name in every[0]}
            ends = interval(of["final"])
            inside = "–" if np.isnan(ends).any() else f"{ends[0]:.3f} to {ends[1]:.3f}"
            parts = [with_spread(of.get(name, [float("nan")])) for name in texts]
            steps = _steps(of["steps_to_vanilla"])
            losses = [with_spread(of["at_start"]), with_spread(of["final"]), inside]
            rows.append([start, method, str(len(runs)), *losses, *parts, steps])
    return aligned(rows)


def write_csv(phases: Phases, path: Path) -> None:
    """Write the numbers of every run; what it does not have stays empty.

    Args:
        phases: The runs.
        path: The file.
    """
    names = columns(phases)
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["start", "method", "seed", *names])
        for start, by_method in phases.items():
            for method, runs in by_method.items():
                for seed in runs:
                    values = numbers(phases, start, method, seed)
                    cells = (values.get(name, np.nan) for name in names)
                    writer.writerow([start, method, seed, *("" if np.isnan(cell) else f"{cell:.6g}" for cell in cells)])


def draw(phases: Phases, firsts: Firsts, taken: Taken, path: Path, title: str) -> None:
    """Draw the validation loss of phase 1 with the places of the checkpoints, and of phase 2 from each of them.

    Means and standard deviations (n - 1) over the seeds. The axes of phase 2 cover what the methods reach; the loss
    just after an event may lie above.

    Args:
        phases: The runs.
        firsts: The trainings of the first phase.
        taken: Where the checkpoints were taken.
        path: The picture, PNG whatever its name.
        title: Its title.
    """
    methods = list(dict.fromkeys(method for by_method in phases.values() for method in by_method))
    color = dict(zip(methods, colors(len(methods)), strict=True))
    figure, axes = plt.subplots(1, 1 + len(phases), figsize=(4 + 3.6 * len(phases), 4.4), layout="constrained")
    _draw_first(axes[0], firsts, taken)
    every = [run for by_method in phases.values() for runs in by_method.values() for run in runs.values()]
    ends = [run.final for run in every if np.isfinite(run.final)] or [0.0]
    for axis, (start, by_method) in zip(axes[1:], phases.items(), strict=True):
        for method, runs in by_method.items():
            _draw_band(axis, [run.loss for run in runs.values()], color[method], method)
        axis.set_ylim(min(ends) - 0.1 * np.ptp(ends) - 1e-3, max(ends) + 1.5 * np.ptp(ends) + 1e-2)
        axis.set_title(f"phase 2 from {start}", parse_math=False)
        axis.set_xlabel("optimizer steps of phase 2")
        axis.grid(alpha=0.25)
    legend = figure.legend(*axes[1].get_legend_handles_labels(), loc="outside right upper")
    for entry in legend.get_texts():
        entry.set_parse_math(False)
    figure.suptitle(title, parse_math=False)
    figure.savefig(path, dpi=140, format="png")
    plt.close(figure)


def _draw_first(axis: plt.Axes, firsts: Firsts, taken: Taken) -> None:
    _draw_band(axis, list(firsts.values()), "black", "phase 1")
    axis.set_title("phase 1")
    axis.set_xlabel("optimizer steps")
    axis.set_ylabel("validation loss (nats per token)")
    axis.grid(alpha=0.25)
    for number_, (start, by_seed) in enumerate(taken.items()):
        place = float(np.mean(list(by_seed.values())))
        axis.axvline(place, linestyle="--", linewidth=1, color="black", alpha=0.5)
        axis.annotate(
            start, (place, 0.97 - 0.06 * number_), xycoords=("data", "axes fraction"), ha="right", parse_math=False
        )


def _draw_band(axis: plt.Axes, curves: list[Series], color: str, label: str) -> None:
    places = np.unique(np.concatenate([steps for steps, _ in curves]))
    values = np.stack([np.interp(places, steps, losses, left=np.nan, right=np.nan) for steps, losses in curves])
    values = np.ma.masked_invalid(values)
    middle, spread = values.mean(axis=0), np.ma.filled(values.std(axis=0, ddof=1), 0.0)  # 0 of a single one
    axis.plot(places, middle, color=color, label=f" {label}" if label.startswith("_") else label, linewidth=1.6)
    axis.fill_between(places, middle - spread, middle + spread, color=color, alpha=0.2, linewidth=0)


def _steps(values: list[float]) -> str:
    """Format steps, and how many of the seeds got there where not all did."""
    there = [value for value in values if np.isfinite(value)]
    if not there:
        return "–" if np.isnan(values).all() else "never"
    return number(mean(there), 0) + ("" if len(there) == len(values) else f" ({len(there)} of {len(values)})")
