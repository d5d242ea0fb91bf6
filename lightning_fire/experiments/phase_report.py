"""The table, the CSV files and the picture of a second phase that goes on from several checkpoints of the first."""

import csv
from collections.abc import Mapping
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from lightning_fire.experiments.history import Series
from lightning_fire.experiments.phase_history import PhaseHistory
from lightning_fire.experiments.report import (
    NEVER_ACTED,
    aligned,
    colors,
    difference_cell,
    draw_band,
    mean_curve,
    never_acted,
    of_column,
    when_reached,
    with_spread,
)

Phases = Mapping[str, Mapping[str, Mapping[int, PhaseHistory]]]  # by start, method and seed
Firsts = Mapping[int, Series]  # validation loss of the first phase by seed
Taken = Mapping[str, Mapping[int, float]]  # by start and seed: steps of the first phase after which it was taken


def columns(phases: Phases) -> list[str]:
    """Return the names of the numbers of a run: losses of each text among them."""
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
        "steps_to_reference",
        "event_seconds",
    ]


def numbers(phases: Phases, start: str, method: str, seed: int, reference: str) -> dict[str, float]:
    """Reduce a run to numbers.

    `at_start`: validation loss just after the event; `final`: at the end; `final_{text}`: of each text by itself;
    `steps_to_reference`: optimizer steps until the loss is at or below the final one of the reference, Inf if it never
    is, NaN without a reference; `event_seconds`: time that the method took.
    """
    run = phases[start][method][seed]
    other = phases[start].get(reference, {}).get(seed)
    return {
        "at_start": run.at_start,
        "final": run.final,
        **{f"final_{text}": float(losses[-1]) for text, (_, losses) in run.by_text.items()},
        "steps_to_reference": float("nan") if other is None else run.steps_to(other.final),
        "event_seconds": run.event_seconds,
    }


def table(phases: Phases, reference: str) -> str:
    """Format the comparison for a terminal: mean ± standard deviation (n - 1) over the seeds."""
    texts = [name for name in columns(phases) if name.startswith("final_")]
    titles = ["loss after the event", "final loss", f"minus {reference} (95 %)"]
    titles += [*(name.replace("final_", "on ") for name in texts), f"steps to {reference}'s"]
    rows = [["start", "method", "seeds", *titles]]
    for start, by_method in phases.items():
        every = {m: {s: numbers(phases, start, m, s, reference) for s in runs} for m, runs in by_method.items()}
        for method, runs in every.items():
            of = {name: list(of_column(every, method, name).values()) for name in columns(phases)}
            less = difference_cell(every, method, reference)
            losses = [with_spread(of["at_start"]), with_spread(of["final"]), less]
            parts = [with_spread(of[name]) for name in texts]
            steps = NEVER_ACTED if never_acted(by_method, method, "loss") else when_reached(of["steps_to_reference"])
            rows.append([start, method, str(len(runs)), *losses, *parts, steps])
    return aligned(rows)


def write_csv(phases: Phases, reference: str, path: Path) -> None:
    """Write the numbers of every run; what it does not have stays empty."""
    names = columns(phases)
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["start", "method", "seed", *names])
        for start, by_method in phases.items():
            for method, runs in by_method.items():
                for seed in runs:
                    values = numbers(phases, start, method, seed, reference)
                    cells = (values.get(name, np.nan) for name in names)
                    writer.writerow([start, method, seed, *("" if np.isnan(cell) else f"{cell:.6g}" for cell in cells)])


def draw(phases: Phases, firsts: Firsts, taken: Taken, path: Path, title: str) -> None:
    """Draw the validation loss of phase 1 with the places of the checkpoints, and of phase 2 from each of them.

    Means and standard deviations (n - 1) over the seeds. The axes of phase 2 cover what the methods reach; the loss
    just after an event may lie above.
    """
    methods = list(dict.fromkeys(method for by_method in phases.values() for method in by_method))
    color = dict(zip(methods, colors(len(methods)), strict=True))
    figure, axes = plt.subplots(1, 1 + len(phases), figsize=(4 + 3.6 * len(phases), 4.4), layout="constrained")
    _draw_first(axes[0], firsts, taken)
    every = [run for by_method in phases.values() for runs in by_method.values() for run in runs.values()]
    ends = [run.final for run in every if np.isfinite(run.final)] or [0.0]
    for axis, (start, by_method) in zip(axes[1:], phases.items(), strict=True):
        for method, runs in by_method.items():
            draw_band(axis, mean_curve([run.loss for run in runs.values()]), color[method], method)
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
    draw_band(axis, mean_curve(list(firsts.values())), "black", "phase 1")
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
