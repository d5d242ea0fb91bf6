"""Differences of the rows to continuing and to training from scratch, tested together over the whole board."""

import math
from collections.abc import Mapping
from typing import Literal

from lightning_fire.board.evaluate import FULL_RESET
from lightning_fire.board.row import Cell, Row, Values
from lightning_fire.board.suite import Suite, Task
from lightning_fire.experiments.decision import Difference, decided_together, paired_differences
from lightning_fire.experiments.tables import aligned, mean, number
from lightning_fire.recipe.recipe import VANILLA

Reference = Literal["vanilla", "scratch"]
BETTER_THAN_BOTH, BETTER, WORSE = "●", "○", "×"
NOT_TRAINED, NOT_TAKEN = "–", "n/a"
MARKS = (
    f"Shown to be {BETTER_THAN_BOTH} better than {VANILLA} and training from scratch, {BETTER} better than {VANILLA},"
    f" {WORSE} worse than {VANILLA}; no mark: none of these"
)


def differences(rows: Mapping[str, Row], suite: Suite) -> dict[tuple[str, str, Reference], Difference]:
    """Gain of each method over vanilla and over a full reset on each task, in the units of the table.

    All differences of the board are tested together by Holm's procedure: if no methods differ, the probability that the
    board shows any difference is at most 5 %.

    Args:
        rows: Rows by method.
        suite: Their suite.

    Returns:
        Differences by method, task and reference; without diverged cells and comparisons of a method with itself.
    """
    pairs: dict[tuple[str, str, Reference], tuple[Values, Values]] = {}
    for method, row in rows.items():
        if method == VANILLA:  # its difference to scratch is that of the full reset
            continue
        for name, cell in row.cells.items():
            if name not in suite.tasks:  # a row of another version
                continue
            values = gains(suite.tasks[name], cell.values)
            references: dict[Reference, Values] = {"vanilla": cell.vanilla, "scratch": cell.scratch}
            for reference, of in references.items():
                if (method, reference) != (FULL_RESET, "scratch") and _finite(cell, of):
                    pairs[method, name, reference] = values, gains(suite.tasks[name], of)
    return decided_together(pairs)


def gains(task: Task, values: Values) -> dict[int, float]:
    """Convert results of a task to the units of the table, with larger being better."""
    sign = -1 if task.mode == "min" else 1
    return {seed: sign * task.scale * value for seed, value in values.items()}


def best_of(rows: Mapping[str, Row], task: Task) -> list[str]:
    """Return the method with the best mean on a task, and all methods that it is not shown to beat, best first."""
    values = {
        method: gains(task, row.cells[task.name].values)
        for method, row in rows.items()
        if task.name in row.cells and _finite(row.cells[task.name], {})
    }
    if not values:
        return []
    by_mean = sorted(values, key=lambda method: -mean(values[method].values()))
    pairs = paired_differences(values)
    beaten = {m for m in by_mean[1:] if (by_mean[0], m) in pairs and pairs[by_mean[0], m].decided}
    return [method for method in by_mean if method not in beaten]


def cells(rows: Mapping[str, Row], suite: Suite) -> list[list[str]]:
    """Return the cells of the table: gain over vanilla with its interval, and a mark; the first row is the header."""
    found = differences(rows, suite)
    there = [name for name in suite.tasks if any(name in row.cells for row in rows.values())]
    table = [["method", *there]]
    for method, row in rows.items():
        table.append([method, *(_cell(method, row.cells.get(name), suite, name, found) for name in there)])
    return table


def table(rows: Mapping[str, Row], suite: Suite) -> str:
    """Format the table for a terminal."""
    there = [task for name, task in suite.tasks.items() if any(name in row.cells for row in rows.values())]
    numbers = "\n".join(f"{task.name}: {task.number}" for task in there)
    first = [f"{task.name}: {', '.join(best_of(rows, task))}" for task in there]
    return (
        f"{aligned(cells(rows, suite))}\n\nGain over {VANILLA}; tests and intervals are corrected for all cells."
        f" {MARKS}.\n{numbers}\n\nbest mean, with all methods that it is not shown to be better than:\n"
        + "\n".join(first)
    )


def mark(vanilla: Difference, scratch: Difference | None) -> str:
    """Return the mark of a cell."""
    if not vanilla.decided:
        return ""
    if vanilla.gain < 0:
        return WORSE
    return BETTER_THAN_BOTH if scratch and scratch.decided and scratch.gain > 0 else BETTER


def _cell(
    method: str,
    cell: Cell | None,
    suite: Suite,
    name: str,
    found: Mapping[tuple[str, str, Reference], Difference],
) -> str:
    task = suite.tasks[name]
    if cell is None:
        return NOT_TAKEN if suite.reason_against(task, method) else NOT_TRAINED
    if diverged := sum(not math.isfinite(value) for value in cell.values.values()):
        return f"{diverged} of {len(cell.values)} diverged"
    if method == VANILLA:
        return number(task.scale * mean(cell.values.values()), task.digits)
    of = found.get((method, name, "vanilla"))
    if of is None:
        diverged = sum(not math.isfinite(value) for value in cell.vanilla.values())
        return f"{VANILLA}: {diverged} of {len(cell.vanilla)} diverged" if diverged else "one seed"
    if not of.varies:
        return "never acted"
    told = "{:+.{d}f} ({:+.{d}f} to {:+.{d}f})".format(of.gain, of.low, of.high, d=task.digits)
    return f"{told} {mark(of, found.get((method, name, 'scratch')))}".rstrip()


def _finite(cell: Cell, reference: Values) -> bool:
    return all(map(math.isfinite, [*cell.values.values(), *reference.values()]))
