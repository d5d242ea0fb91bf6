"""The table, the CSV and the picture of a comparison of returns."""

import csv
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from lightning_fire.compare.deliver import deliver, place, title_of
from lightning_fire.compare.report import aligned, colors, interval, mean, number, with_spread
from lightning_fire.compare.return_history import ReturnHistory

Runs = Mapping[str, Mapping[int, ReturnHistory]]  # by method and seed
COLUMNS = ("before", "final", "since", "dfi_before", "dfi_after", "sfe")


def place_of_events(runs: Runs) -> float:
    """Return after how many environment steps the methods act: the median of all first events.

    Args:
        runs: The runs; where none has events, half of the longest.
    """
    first = [run.events[0] for by_seed in runs.values() for run in by_seed.values() if len(run.events)]
    ends = [run.returns[0][-1] for by_seed in runs.values() for run in by_seed.values()]
    return float(np.median(first)) if first else max(ends) / 2


def numbers(run: ReturnHistory, place: float) -> dict[str, float]:
    """Reduce a run to the `COLUMNS` of the table.

    Args:
        run: The run.
        place: Environment steps at which the methods act.

    Returns:
        `before`: return of the last evaluation before that; `final`: mean of those in the last tenth of training;
        `since`: mean of all after it; NaN: the run does not have it.
    """
    before, after = run.dfi
    values = (run.before(place), run.final, run.since(place), before, after, run.sfe)
    return dict(zip(COLUMNS, values, strict=True))


def all_numbers(runs: Runs) -> dict[str, list[dict[str, float]]]:
    """Return the numbers of each run, by method.

    Args:
        runs: The runs.
    """
    place = place_of_events(runs)
    return {method: [numbers(run, place) for run in by_seed.values()] for method, by_seed in runs.items()}


def table(runs: Runs) -> str:
    """Format the comparison for a terminal: mean ± standard deviation (n - 1) over the seeds.

    Args:
        runs: The runs.
    """
    titles = ["before the event", "final return", "95 % interval", "mean since", "DfI before → after", "SFE/‖W‖²"]
    rows = [["method", "seeds", *titles]]
    for method, every in all_numbers(runs).items():
        of = {column: [values[column] for values in every] for column in COLUMNS}
        ends = interval(of["final"])
        inside = "–" if np.isnan(ends).any() else " to ".join(number(end, 1) for end in ends)
        spread = [with_spread(of[column], digits=1) for column in ("before", "final", "since")]
        dfi = f"{number(mean(of['dfi_before']))} → {number(mean(of['dfi_after']))}"
        rows.append([method, str(len(every)), *spread[:2], inside, spread[2], dfi, number(mean(of["sfe"]))])
    return aligned(rows)


def write_csv(runs: Runs, path: Path) -> None:
    """Write the numbers of every run; what it does not have stays empty.

    Args:
        runs: The runs.
        path: The file.
    """
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["method", "seed", *COLUMNS])
        for method, every in all_numbers(runs).items():
            for seed, values in zip(runs[method], every, strict=True):
                cells = ("" if np.isnan(value) else f"{value:.6g}" for value in values.values())
                writer.writerow([method, seed, *cells])


def draw(runs: Runs, path: Path, title: str) -> None:
    """Draw the return of each evaluation: means over the seeds and their 95 % bootstrap intervals, the event marked.

    Args:
        runs: The runs.
        path: The picture, PNG whatever its name.
        title: Its title.
    """
    figure, axis = plt.subplots(figsize=(8, 4.6), layout="constrained")
    for color, (method, by_seed) in zip(colors(len(runs)), runs.items(), strict=True):
        curves = [run.returns for run in by_seed.values()]
        places = np.unique(np.concatenate([steps for steps, _ in curves]))
        values = np.stack([np.interp(places, steps, returns) for steps, returns in curves])
        ends = np.array([interval(column, resamples=2000) for column in values.T])
        label = f" {method}" if method.startswith("_") else method
        axis.plot(places, values.mean(0), color=color, label=label, linewidth=1.6)
        axis.fill_between(places, ends[:, 0], ends[:, 1], color=color, alpha=0.15, linewidth=0)
    axis.axvline(place_of_events(runs), linestyle="--", linewidth=1, color="black")
    axis.set_xlabel("environment steps")
    axis.set_ylabel("return of an episode of evaluation")
    axis.set_title(title, parse_math=False)
    axis.grid(alpha=0.25)
    for entry in axis.legend().get_texts():
        entry.set_parse_math(False)
    figure.savefig(path, dpi=140, format="png")
    plt.close(figure)


def publish(runs: Runs, recipe: Path, output: Path) -> None:
    """Write everything, print the table and say where the rest is.

    Args:
        runs: The runs.
        recipe: The folder of the recipe, which gives the title.
        output: Where to.

    Raises:
        SystemExit: If a file cannot be written; names it.
    """
    deliver(
        output,
        table(runs),
        {"results.csv": partial(write_csv, runs), "comparison.png": partial(draw, runs, title=title_of(recipe))},
        "returns: of evaluations, mean ± standard deviation (n - 1) over the seeds; the event is after"
        f" {place_of_events(runs):.0f} environment steps; final: the last tenth of training; interval: of the mean, by"
        " bootstrap over the seeds; DfI: normalised deviation from isometry",
    )
    place("TensorBoard", f"tensorboard --logdir {output}")
