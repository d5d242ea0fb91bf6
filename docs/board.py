"""The tables and figures of docs/board.md, from the rows in docs/board.

python docs/board.py   # writes them
"""

import argparse
import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from lightning_fire.board.evaluate import FULL_RESET
from lightning_fire.board.row import Row, Values, read_rows
from lightning_fire.board.suite import Suite, Task, read_suite
from lightning_fire.board.table import MARKS, best_of, cells, differences, gains, mark
from lightning_fire.experiments.statistics import difference
from lightning_fire.experiments.tables import difference_cell
from lightning_fire.recipe.recipe import SCRATCH, VANILLA

DOCS = Path(__file__).parent
ROWS, PAGE, CURVES, CSV, FIGURE = (
    DOCS / name for name in ("board", "board.md", "board_curves.md", "board.csv", "board.png")
)
BEGIN, END = "<!-- {}: written by docs/board.py -->\n", "<!-- end -->"
OTHER_MACHINE = " †"
COLORS = {"●": "tab:green", "○": "tab:blue", "×": "tab:red", "": "tab:gray"}
FIRE = "fire"
IN_THE_PAPER = (
    *(VANILLA, FULL_RESET, "shrink_and_perturb", "dash", "l2_init", "parseval", "redo", "continual_backprop", "snr"),
    *("muon", "plasticity_injection"),
)
OF_UNITS = ("redo", "redo_gradient", "continual_backprop", "snr")
HEAD = ["task", "method", "mean", "sd", "seeds"]
HEAD += [f"{of}{end}" for of in ("gain", "over_scratch") for end in ("", "_low", "_high", "_five_low", "_five_high")]
HEAD += ["setting", "seconds"]


def markdown(rows: list[list[str]], numbers: bool = True) -> str:
    """Return a table in Markdown; columns of numbers, all but the first, are to the right."""
    head, *body = rows
    return (
        "\n".join(
            f"| {' | '.join(line)} |"
            for line in (head, ["---", *["--:" if numbers else "---"] * (len(head) - 1)], *body)
        )
        + "\n"
    )


def ordered(rows: Mapping[str, Row], suite: Suite) -> dict[str, Row]:
    """Return the rows in the order of the suite, and after them those that joined, with the cells of its tasks."""
    rows = {
        name: replace(row, cells={task: cell for task, cell in row.cells.items() if task in suite.tasks})
        for name, row in rows.items()
    }
    return {name: rows[name] for name in dict.fromkeys([*suite.names, *rows]) if name in rows}


def tasks_table(rows: Mapping[str, Row], suite: Suite) -> str:
    """Table of the tasks, with the numbers of continuing and of training from scratch."""
    table = [["task", "what changes", "what is measured", VANILLA, "training from scratch", "seconds per run"]]
    for name, task in suite.tasks.items():
        if name in rows[VANILLA].cells:
            cell = rows[VANILLA].cells[name]
            of = [f"{task.scale * np.mean([*v.values()]):.3g}" for v in (cell.vanilla, cell.scratch)]
            number = f"{task.number}{', less is better' if task.mode == 'min' else ''}"
            table.append([name, task.about, number, *of, f"{cell.seconds:.0f}"])
    return markdown(table, numbers=False)


def main_table(rows: Mapping[str, Row], suite: Suite) -> str:
    """Return the gains of all methods, each linked to its curves."""
    head, *body = cells(rows, suite)
    for line in body:
        other = False
        for place, name in enumerate(head[1:], 1):
            if cell := rows[line[0]].cells.get(name):
                text = re.sub(r"^([-+\d.]+) \(([-+\d.]+) to ([-+\d.]+)\)", _half_width, line[place])
                line[place] = f"[{text}](board_curves.md#{name})"
                other |= cell.machine != rows[VANILLA].cells[name].machine
        line[0] = f"`{line[0]}`{OTHER_MACHINE if other else ''}"
    return markdown([[name.replace("_", " ") for name in head], *body])


def _half_width(match: re.Match[str]) -> str:
    low, high = float(match[2]), float(match[3])
    return f"{match[1]} ± {(high - low) / 2:.{len(match[1].partition('.')[2])}f}"


def left_out(suite: Suite) -> str:
    """Return which methods a task does not take, and why."""
    lines = []
    for name, task in suite.tasks.items():
        reasons: dict[str, list[str]] = {}
        for method, reason in task.left_out.items():
            reasons.setdefault(reason, []).append(f"`{method}`")
        told = "; ".join(f"{', '.join(methods)}: {reason}" for reason, methods in reasons.items())
        lines += [f"- {name}: {told}."] if told else []
    return "\n".join(lines) + "\n"


def first_table(rows: Mapping[str, Row], suite: Suite) -> str:
    """Return who is first on each task, and who is not shown to be worse."""
    table = [["task", "best mean", "not shown to be worse"]]
    for name, task in suite.tasks.items():
        best = best_of(rows, task)
        if best:
            table.append([name, f"`{best[0]}`", ", ".join(f"`{method}`" for method in best[1:]) or "none"])
    return markdown(table, numbers=False)


def alone(row: Row, task: Task, reference: str, seeds: int) -> tuple[float, float, float]:
    """Return a gain with the first seeds, and the 95 % interval of this pair by itself."""
    cell = row.cells[task.name]
    pair = (cell.values, cell.vanilla if reference == VANILLA else cell.scratch)
    return difference(*({seed: gain for seed, gain in gains(task, each).items() if seed < seeds} for each in pair))


def vanished(rows: Mapping[str, Row], suite: Suite) -> tuple[str, str]:
    """Return a sentence and a table on differences that five seeds show singly, and ten do not, or not corrected."""
    shown = dict.fromkeys(suite.tasks, 0)
    lost: dict[str, tuple[list[str], list[str]]] = {name: ([], []) for name in suite.tasks}
    for (method, name, reference), of in differences(rows, suite).items():
        (_, *five), (_, *ten) = (alone(rows[method], suite.tasks[name], reference, seeds) for seeds in (5, 10))
        if excludes_zero(*five):
            shown[name] += 1
            if not of.decided:
                beside = "" if reference == VANILLA else " (scratch)"
                lost[name][excludes_zero(*ten)].append(f"`{method}`{beside}")
    counts = [sum(len(of[kind]) for of in lost.values()) for kind in (0, 1)]
    table = [["task", "five seeds show", "of these ten seeds do not", "ten do, but not after the correction"]]
    for name, of in lost.items():
        if shown[name]:
            table.append([name, str(shown[name]), *(", ".join(methods) or "none" for methods in of)])
    told = "Of {} differences that five seeds show, {} are not shown by ten, and {} more not after the correction."
    return f"{told.format(sum(shown.values()), *counts)}\n", markdown(table, False)


def excludes_zero(low: float, high: float) -> bool:
    """Return whether an interval has no 0."""
    return low > 0 or high < 0


def values_of(row: Row, of: str = "values") -> dict[str, Values]:
    """Return the values of a row by task and seed, or those of `vanilla` or `scratch` beside them."""
    return {name: getattr(cell, of) for name, cell in row.cells.items()}


def fire_table(rows: Mapping[str, Row], suite: Suite) -> str:
    """Table of the gains of FIRE with the paper's scale over the methods of the paper, each pair by itself."""
    pairs = {name: (values_of(rows[FIRE]), values_of(rows[name])) for name in IN_THE_PAPER if name in rows}
    return paired_table("`fire` minus", pairs, suite)


def units_table(rows: Mapping[str, Row], suite: Suite) -> str:
    """Table of the gains of the methods that reset single units over training from scratch, each pair by itself."""
    pairs = {name: (values_of(rows[name]), values_of(rows[name], SCRATCH)) for name in OF_UNITS if name in rows}
    return paired_table("minus training from scratch", pairs, suite)


def paired_table(
    head: str, pairs: Mapping[str, tuple[Mapping[str, Values], Mapping[str, Values]]], suite: Suite
) -> str:
    """Table of differences: for each row, two sets of values by task and seed; the second is subtracted."""
    there = [name for name in suite.tasks if any(name in one for one, _ in pairs.values())]
    table = [[head, *there]]
    for method, both in pairs.items():
        cells = [
            difference_cell(*(gains(suite.tasks[name], of.get(name, {})) for of in both), suite.tasks[name].digits)
            for name in there
        ]
        table.append([f"`{method}`", *cells])
    return markdown(table)


def minutes(rows: Mapping[str, Row], suite: Suite) -> str:
    """Return the time of the machine that the rows have taken."""
    every = [cell for row in rows.values() for cell in row.cells.values()]
    total = sum(cell.seconds * (len(cell.values) + len(cell.tried) * len(suite.tuning_seeds)) for cell in every)
    machines = "; ".join(sorted({cell.machine for cell in every}))
    versions = {name: sorted({cell.versions[name] for cell in every}) for name in ("torch", "lightning", "python")}
    of = ", ".join(f"{name} {' and '.join(found)}" for name, found in versions.items())
    return (
        f"{len(rows)} of {len(suite.names)} methods of the suite so far, {total / 3600:.1f} hours of runs one"
        f" after the other, {total / 60 / len(rows):.0f} minutes a method, with {of}. Machines: {machines}.\n"
    )


def tuning(rows: Mapping[str, Row], suite: Suite) -> str:
    """Tell how many tuned cells have the smallest or the largest of the settings of their method."""
    ends = list[bool]()
    for method, row in rows.items():
        for name, cell in row.cells.items():
            space = suite.space_of(suite.tasks[name], method)
            if found := [cell.setting[key] in (of[0], of[-1]) for key, of in space.items() if key in cell.setting]:
                ends.append(any(found))
    return (
        f"Of {len(ends)} tuned cells {sum(ends)} have the smallest or the largest of the three settings: a wider search"
        " could give more.\n"
    )


def write_csv(rows: Mapping[str, Row], suite: Suite) -> None:
    """Write every cell with its intervals."""
    found = differences(rows, suite)
    with CSV.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(HEAD)
        for method, row in rows.items():
            for name, cell in row.cells.items():
                task = suite.tasks[name]
                values = task.scale * np.array([*cell.values.values()])
                ends = []
                for reference in (VANILLA, SCRATCH):
                    of = found.get((method, name, reference))
                    five = alone(row, task, reference, 5)[1:] if of else ()
                    ends += [f"{x:.4g}" for x in (of.gain, of.low, of.high, *five)] if of else [""] * 5
                setting = " ".join(f"{key.rpartition('.')[2]}={value}" for key, value in cell.setting.items())
                spread = f"{values.std(ddof=1):.3g}"
                writer.writerow(
                    [name, method, f"{values.mean():.4g}", spread, len(values), *ends, setting, cell.seconds]
                )


def draw_board(rows: Mapping[str, Row], suite: Suite) -> None:
    """Draw the gains with their intervals, a panel for each task; a line of panels has the methods of its tasks."""
    found = differences(rows, suite)
    tasks = [name for name in suite.tasks if any(name in row.cells for row in rows.values())]
    lines = [tasks[first : first + 4] for first in range(0, len(tasks), 4)]
    shown = [[method for method in rows if any((method, name, "vanilla") in found for name in line)] for line in lines]
    heights = [0.19 * len(methods) + 0.9 for methods in shown]
    figure, grid = plt.subplots(
        *(len(lines), len(lines[0])),
        figsize=(2.7 * len(lines[0]) + 1.6, sum(heights)),
        sharey="row",
        squeeze=False,
        height_ratios=heights,
    )
    for axes in grid.flat[len(tasks) :]:
        axes.set_visible(False)
    for number, name in enumerate(tasks):
        axes, methods = grid.flat[number], shown[number // 4]
        scratch = found.get((FULL_RESET, name, "vanilla"))
        axes.axvline(0, color="black", linewidth=1)
        if scratch:
            axes.axvline(scratch.gain, color="black", linewidth=1, linestyle=":")
        for place, method in enumerate(methods):
            if of := found.get((method, name, "vanilla")):
                color = COLORS[mark(of, found.get((method, name, "scratch")))]
                axes.plot([of.low, of.high], [place] * 2, color=color, linewidth=2)
                axes.plot(of.gain, place, "o", color=color, markersize=4)
        axes.set_title(name.replace("_", " "), fontsize=10)
        axes.set_yticks(range(len(methods)), [method.replace("_", " ") for method in methods], fontsize=8)
        axes.set_ylim(len(methods) - 0.5, -0.5)
        axes.tick_params(axis="x", labelsize=8)
        axes.grid(axis="x", alpha=0.3)
    figure.supxlabel(
        "gain over vanilla (line) and that of training from scratch (dotted); shown to be better than both: green,"
        " than vanilla: blue, worse than vanilla: red, neither: gray",
        fontsize=9,
    )
    figure.tight_layout()
    figure.savefig(FIGURE, dpi=110)
    plt.close(figure)


def draw_curves(rows: Mapping[str, Row], task: Task) -> Path:
    """Draw the curve of each method on a task, beside those of continuing and of training from scratch."""
    shown = [
        name for name, row in rows.items() if name != VANILLA and task.name in row.cells and row.cells[task.name].curve
    ]
    figure, grid = plt.subplots(
        -(-len(shown) // 6), 6, figsize=(13, 1.7 * -(-len(shown) // 6) + 0.5), sharex=True, sharey=True, squeeze=False
    )
    for axes in grid.flat[len(shown) :]:
        axes.set_visible(False)
    for axes, method in zip(grid.flat, shown, strict=False):
        for name, style in (
            (VANILLA, {"color": "black", "linestyle": "-"}),
            (FULL_RESET, {"color": "black", "linestyle": ":"}),
        ):
            if name in rows and task.name in rows[name].cells:
                axes.plot(*_line(rows[name].cells[task.name].curve, task), linewidth=0.9, **style)
        x, middle = _line(rows[method].cells[task.name].curve, task)
        spread = task.scale * np.array([of for _, of in rows[method].cells[task.name].curve])
        axes.plot(x, middle, color="tab:orange")
        axes.fill_between(x, middle - spread, middle + spread, color="tab:orange", alpha=0.25, linewidth=0)
        axes.set_title(method.replace("_", " "), fontsize=8)
        axes.tick_params(labelsize=7)
    figure.supylabel(task.curve, fontsize=8)
    figure.tight_layout()
    path = DOCS / f"board_{task.name}.png"
    figure.savefig(path, dpi=90)
    plt.close(figure)
    return path


def _line(curve: list[tuple[float, float]], task: Task) -> tuple[np.ndarray, np.ndarray]:
    middle = task.scale * np.array([of for of, _ in curve])
    return np.linspace(0, 1, len(middle)), middle


def parts(rows: Mapping[str, Row], suite: Suite, lost: str) -> Iterator[tuple[str, str]]:
    """Go through the parts of the page, by name; `lost` is the sentence of `vanished`."""
    yield "tasks", tasks_table(rows, suite)
    yield "table", f"{main_table(rows, suite)}\n{MARKS}.\n"
    yield "left out", left_out(suite)
    yield "first", first_table(rows, suite)
    yield "fire", fire_table(rows, suite)
    yield "units", units_table(rows, suite)
    yield "vanished", lost
    yield "time", minutes(rows, suite) + tuning(rows, suite)


def page(rows: Mapping[str, Row], suite: Suite, lost: str) -> str:
    """Return the page with its parts rewritten."""
    text = PAGE.read_text(encoding="utf-8")
    for name, part in parts(rows, suite, lost):
        begin = BEGIN.format(name)
        before, found, rest = text.partition(begin)
        if not found:
            raise ValueError(f"{PAGE} has no line {begin!r}")
        text = before + begin + part + END + rest.partition(END)[2]
    return text


def main() -> None:
    """Write everything."""
    suite = read_suite()
    rows = ordered(read_rows(ROWS), suite)
    lost, table = vanished(rows, suite)
    PAGE.write_text(page(rows, suite, lost), encoding="utf-8")
    write_csv(rows, suite)
    draw_board(rows, suite)
    text = (
        "# Curves of the board, and fewer seeds\n\nMean over ten seeds, ± one standard deviation, over the training;"
        " black: continuing; dotted: training from scratch.\n"
    )
    for name, task in suite.tasks.items():
        if any(name in row.cells and row.cells[name].curve for method, row in rows.items() if method != VANILLA):
            path = draw_curves(rows, task)
            about = f"{task.about[0].upper()}{task.about[1:]}"
            text += f"\n## {name}\n\n{about}. Drawn: `{task.curve}`.\n\n![a panel for each method]({path.name})\n"
    text += (
        "\n## What five seeds would have shown\n\nDifferences to vanilla and to training from scratch (scratch), first"
        f" each by its own 95 % interval, then as marked on the board; numbers in `board.csv`.\n\n"
        f"{table}"
    )
    CURVES.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    main()
