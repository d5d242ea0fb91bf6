"""Map of FIRE's gain over learning rate, width, length of tasks and similarity of tasks.

python -m studies.map   # tables, results.csv and map.png in runs/map

Memorizing 600 images in 15 tasks, as in the quick start. Similarity: in each task a fraction of the labels is drawn
again, the others are those of one fixed random labelling.
"""

import time
from dataclasses import dataclass

import matplotlib.pyplot as plt
import pandas as pd
import torch

from lightning_fire.data import RandomLabels
from lightning_fire.data.streams import Samples, TaskSamples
from studies.methods import METHODS
from studies.runs import Setting, arguments, cell, finish, markdown, run
from studies.streams import STREAMS, Stream

NAMES = ("vanilla", "full_reset", "fire", "fire_procrustes")
RATES, WIDTHS = (3e-4, 1e-3, 3e-3, 1e-2), (30, 100, 200)
EPOCHS, FRACTIONS = (3, 10, 30), (0.1, 0.3, 1.0)


@dataclass(frozen=True)
class PartlyRandomLabels(RandomLabels):
    """Random labels of which only a fraction differ from a fixed labelling."""

    fraction: float = 1.0

    def task(self, number: int, train: Samples, test: Samples, num_classes: int | None, seed: int) -> TaskSamples:
        """Return the training samples of a task, twice."""
        (inputs, fixed), _ = super().task(self.num_chunks, train, test, num_classes, seed)
        (_, labels), _ = super().task(number, train, test, num_classes, seed)
        kept = torch.rand(len(labels), generator=torch.Generator().manual_seed(1_000 * seed + number)) >= self.fraction
        samples = inputs, torch.where(kept, fixed, labels)
        return samples, samples


def settings(seeds: range) -> list[Setting]:
    """Return all settings."""
    usual, found = STREAMS["random_labels"], []
    for name in NAMES:
        for seed in seeds:
            for rate in RATES:
                for width in WIDTHS:
                    found.append(Setting("random_labels", name, seed, METHODS[name], rate=rate, width=width))
            for epochs in EPOCHS:
                for fraction in FRACTIONS:
                    tasks = Stream(
                        "", PartlyRandomLabels(15, 600, epochs, fraction=fraction), usual.batch_size, usual.rate
                    )
                    label = f"epochs={epochs},changed={fraction}"
                    found.append(Setting(label, name, seed, METHODS[name], tasks=tasks))
    return found


def gains(runs: pd.DataFrame, rows: dict[str, pd.Series], columns: dict[str, pd.Series], names: list[str]) -> str:
    """Return a table, a row for each setting: vanilla's accuracy, and the differences of the other methods to it."""
    lines = []
    for row, of_row in rows.items():
        for column, of_column in columns.items():
            own = runs[of_row & of_column]
            lines.append([row, column, cell(own, "vanilla"), *(cell(own, name, "vanilla") for name in NAMES[1:])])
    differences = [f"{name.replace('_', ' ')} minus vanilla (95 %)" for name in NAMES[1:]]
    return markdown([*names, "vanilla", *differences], lines)


def main() -> None:
    """Run the study."""
    options, start = arguments(__doc__, "map"), time.perf_counter()
    runs = run(settings(options.seed_range), options.folder, options.jobs)
    first, second = runs[runs.stream == "random_labels"], runs[runs.stream != "random_labels"]
    rates = {f"{rate:g}": first.rate == rate for rate in RATES}
    widths = {str(width): first.width == width for width in WIDTHS}
    lengths = {str(epochs): second.stream.str.startswith(f"epochs={epochs},") for epochs in EPOCHS}
    changes = {f"{fraction:.0%}": second.stream.str.endswith(f"changed={fraction}") for fraction in FRACTIONS}
    print(gains(first, rates, widths, ["rate", "width"]))
    print("\n" + gains(second, lengths, changes, ["epochs a task", "new labels"]))
    figure, panels = plt.subplots(2, 2, figsize=(9, 7))
    for line, name in zip(panels, ("fire", "fire_procrustes"), strict=True):
        maps = ((first, rates, widths, "rate", "width"), (second, lengths, changes, "epochs a task", "new labels"))
        for axes, (own, rows, columns, vertical, horizontal) in zip(line, maps, strict=True):
            means = [
                [
                    100
                    * (
                        own[a & b & (own.method == name)].online_last.mean()
                        - own[a & b & (own.method == "vanilla")].online_last.mean()
                    )
                    for b in columns.values()
                ]
                for a in rows.values()
            ]
            axes.imshow(means, cmap="RdBu", vmin=-50, vmax=50, aspect="auto")
            for i, values in enumerate(means):
                for j, value in enumerate(values):
                    axes.text(
                        j, i, f"{value:+.1f}", ha="center", va="center", color="white" if abs(value) > 30 else "black"
                    )
            axes.set_xticks(range(len(columns)), list(columns))
            axes.set_yticks(range(len(rows)), list(rows))
            axes.set(xlabel=horizontal, ylabel=vertical)
            axes.set_title(f"{name.replace('_', ' ')} minus vanilla, points", fontsize=10)
    figure.tight_layout()
    figure.savefig(options.folder / "map.png", dpi=100)
    plt.close(figure)
    finish(runs, start)


if __name__ == "__main__":
    main()
