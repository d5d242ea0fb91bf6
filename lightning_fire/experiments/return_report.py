"""The table, the CSV and the picture of a comparison of returns."""

import csv
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from lightning_fire.experiments.deliver import deliver, place, title_of
from lightning_fire.experiments.report import (
    MINUS,
    NEVER_ACTED,
    aligned,
    colors,
    difference_cell,
    draw_band,
    mean,
    mean_curve,
    never_acted,
    number,
    of_column,
    with_spread,
)
from lightning_fire.experiments.return_history import ReturnHistory
from lightning_fire.recipe.recipe import Recipe

Runs = Mapping[str, Mapping[int, ReturnHistory]]  # by method and seed
COLUMNS = ("before", "final", "since", "dfi_before", "dfi_after", "sfe")


def place_of_events(runs: Runs) -> float:
    """Return after how many environment steps the methods act: the median of all first events."""
    first = [run.events[0] for by_seed in runs.values() for run in by_seed.values() if len(run.events)]
    ends = [run.returns[0][-1] for by_seed in runs.values() for run in by_seed.values()]
    return float(np.median(first)) if first else max(ends) / 2


def numbers(run: ReturnHistory, place: float) -> dict[str, float]:
    """Reduce a run to the `COLUMNS` of the table; NaN: the run does not have it.

    `before`: return of the last evaluation before the event; `final`: mean of those in the last tenth of training;
    `since`: mean of all after it.
    """
    before, after = run.dfi
    values = (run.before(place), run.final, run.since(place), before, after, run.sfe)
    return dict(zip(COLUMNS, values, strict=True))


def all_numbers(runs: Runs) -> dict[str, dict[int, dict[str, float]]]:
    """Return the `numbers` of each run, by method and seed."""
    place = place_of_events(runs)
    return {method: {seed: numbers(run, place) for seed, run in by_seed.items()} for method, by_seed in runs.items()}


def table(runs: Runs, reference: str) -> str:
    """Format the comparison for a terminal: mean ± standard deviation (n - 1) over the seeds."""
    minus = f"minus {reference} (95 %)"
    titles = ["before the event", "final return", minus, "mean since", "DfI before → after", "SFE/‖W‖²"]
    rows = [["method", "seeds", *titles]]
    every = all_numbers(runs)
    for method, by_seed in every.items():
        of = {column: list(of_column(every, method, column).values()) for column in COLUMNS}
        less = difference_cell(every, method, reference, digits=1)
        spread = [with_spread(of[column], digits=1) for column in ("before", "final", "since")]
        dfi = f"{number(mean(of['dfi_before']))} → {number(mean(of['dfi_after']))}"
        if never_acted(runs, method, "returns"):
            dfi = NEVER_ACTED
        rows.append([method, str(len(by_seed)), *spread[:2], less, spread[2], dfi, number(mean(of["sfe"]))])
    return aligned(rows)


def write_csv(runs: Runs, path: Path) -> None:
    """Write the numbers of every run; what it does not have stays empty."""
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["method", "seed", *COLUMNS])
        for method, by_seed in all_numbers(runs).items():
            for seed, values in by_seed.items():
                cells = ("" if np.isnan(value) else f"{value:.6g}" for value in values.values())
                writer.writerow([method, seed, *cells])


def draw(runs: Runs, path: Path, title: str) -> None:
    """Draw the return of each evaluation: mean and standard deviation (n - 1) over the seeds, the event marked."""
    figure, axis = plt.subplots(figsize=(8, 4.6), layout="constrained")
    for color, (method, by_seed) in zip(colors(len(runs)), runs.items(), strict=True):
        draw_band(axis, mean_curve([run.returns for run in by_seed.values()]), color, method)
    axis.axvline(place_of_events(runs), linestyle="--", linewidth=1, color="black")
    axis.set_xlabel("environment steps")
    axis.set_ylabel("return of an episode of evaluation")
    axis.set_title(title, parse_math=False)
    axis.grid(alpha=0.25)
    for entry in axis.legend().get_texts():
        entry.set_parse_math(False)
    figure.savefig(path, dpi=140, format="png")
    plt.close(figure)


def publish(runs: Runs, reference: str, recipe: Recipe, output: Path) -> None:
    """Write everything, print the table and say where the rest is."""
    deliver(
        output,
        table(runs, reference),
        {"results.csv": partial(write_csv, runs), "comparison.png": partial(draw, runs, title=title_of(recipe))},
        "returns: of evaluations, mean ± standard deviation (n - 1) over the seeds; the event is after"
        f" {place_of_events(runs):.0f} environment steps; final: the last tenth of training; DfI: normalised"
        f" deviation from isometry\n{MINUS}",
    )
    place("TensorBoard", f"tensorboard --logdir {output}")
