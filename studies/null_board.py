"""Copies of vanilla on the board: does the board distinguish them? Vanilla is trained with 40 seeds on each task.

python -m studies.null_board runs/null_board

On every task the seeds are dealt at random to a reference and three copies, ten to each, 100 times; the board decides
about each deal as about its own rows. At most 5 of 100 boards may show any difference between copies and reference.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from lightning_fire.board.row import Cell, Row
from lightning_fire.board.suite import Suite, read_suite
from lightning_fire.board.table import differences
from lightning_fire.experiments import compare

COPIES = ("first copy", "second copy", "third copy")


def dealt(values: Mapping[str, Sequence[float]], suite: Suite, rng: np.random.Generator) -> dict[str, Row]:
    """Return the rows of three copies, from the numbers of vanilla by task: equal parts for them and the reference."""
    cells: dict[str, dict[str, Cell]] = {copy: {} for copy in COPIES}
    for task, numbers in values.items():
        reference, *parts = (dict(enumerate(part)) for part in np.split(rng.permutation(numbers), len(COPIES) + 1))
        for copy, part in zip(COPIES, parts, strict=True):
            cells[copy][task] = Cell(part, reference, reference, {}, {}, [], 0.0, "")
    return {copy: Row(copy, {}, of) for copy, of in cells.items()}


def boards_with_a_difference(values: Mapping[str, Sequence[float]], suite: Suite, boards: int = 100) -> int:
    """Return how many of some boards of copies show any difference."""
    rng = np.random.default_rng(0)
    return sum(any(of.decided for of in differences(dealt(values, suite, rng), suite).values()) for _ in range(boards))


def main() -> None:
    """Train what is missing, and print how many boards show a difference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("runs/null_board"), help="where runs are kept")
    parser.add_argument("--jobs", type=int, default=2, help="trainings side by side")
    parser.add_argument("--seeds", type=int, default=40, help="of vanilla, a multiple of four")
    options = parser.parse_args()
    suite, values = read_suite(), dict[str, list[float]]()
    for name, task in suite.tasks.items():
        metric = ["--metric", task.metric, "--mode", task.mode] if task.metric else []
        numbers: pd.DataFrame = compare.main(
            [
                *(str(task.recipe.path), "--methods", "vanilla", "--seeds", str(options.seeds), *metric),
                *("--jobs", str(options.jobs), "--output", str(options.folder / name)),
            ]
        )
        values[name] = list(numbers[task.measure])
    shown = boards_with_a_difference(values, suite)
    print(f"\n{shown} of 100 boards of three copies of vanilla on {len(values)} tasks show a difference")


if __name__ == "__main__":
    main()
