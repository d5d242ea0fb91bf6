"""`lightning-fire board`: evaluates methods on the board, or checks a row."""

import argparse
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import yaml

from lightning_fire.board.check import CHECKED, reproduce_row
from lightning_fire.board.evaluate import evaluate
from lightning_fire.board.own import OwnMethod, read_own, word_of
from lightning_fire.board.row import Cell, Row, read_row, read_rows, write_row
from lightning_fire.board.suite import SUITE, Suite, read_suite
from lightning_fire.board.table import table
from lightning_fire.experiments.compare import add_engine_arguments, engine_for
from lightning_fire.experiments.engines import Engine
from lightning_fire.experiments.runs import lock_folder
from lightning_fire.printable import printable


def parser() -> argparse.ArgumentParser:
    """Return the argument parser of the command."""
    suite = read_suite()
    parser = argparse.ArgumentParser(
        prog="lightning-fire board",
        usage="lightning-fire board METHOD [METHOD ...] [--tasks TASK ...] [...]\n"
        "       lightning-fire board --check ROW",
        allow_abbrev=False,
        description="Tune methods on the tasks of the board with the same number of trials, train them, vanilla and a"
        " full reset with ten other seeds, print the paired differences, and write a row per method that another"
        " person can check. Finished runs are not run again.",
        epilog=f"tasks: {', '.join(suite.tasks)}. Methods: {', '.join(suite.names)}.",
    )
    parser.add_argument(
        "methods",
        nargs="*",
        metavar="METHOD",
        help="method of the board, or your own: FILE.py:CLASS in the current folder, with a class attribute"
        " search_space such as {'strength': [0.1, 0.5, 0.9]}",
    )
    parser.add_argument(
        "--tasks", nargs="+", metavar="TASK", help="tasks of the board (default: all; with --check those of the row)"
    )
    parser.add_argument(
        "--output", type=Path, default=Path("runs/board"), help="folder for runs and rows (default: runs/board)"
    )
    parser.add_argument("--suite", type=Path, default=SUITE, help="YAML file with another suite than the board's")
    parser.add_argument(
        "--check",
        type=Path,
        metavar="ROW",
        help=f"train {CHECKED} seeds of each cell of a row again, with its settings, and compare the numbers; your"
        " own method must be in the current folder",
    )
    add_engine_arguments(parser)
    return parser


def main(args: Sequence[str] | None = None) -> dict[str, Row]:
    """Run the command; return the rows in its folder, by method.

    Raises:
        SystemExit: If a method could not be trained on a task that takes it, or a row does not hold.
    """
    options = parser().parse_args(args)
    until = math.inf if options.max_minutes is None else time.monotonic() + 60 * options.max_minutes
    try:
        suite = read_suite(options.suite)
        if unknown := [name for name in options.tasks or [] if name not in suite.tasks]:
            raise ValueError(f"--tasks: no {', '.join(unknown)}; there are {', '.join(suite.tasks)}")
        row = read_row(options.check) if options.check else None
        words = [word_of(row)] if row else options.methods
        if not words:
            raise ValueError(f"name a method, FILE.py:CLASS or one of {', '.join(suite.names)}")
        suite, methods = _with_own(suite, words)
        if row and row.method not in methods:
            raise ValueError(f"{options.check}: {words[0]} is {', '.join(methods)}, not {row.method}")
        sources = {name: own.source() for name, own in methods.items() if own}
        names = options.tasks or list(row.cells if row else suite.tasks)
        if not row:
            read_rows(options.output / "rows")  # an error in them comes before the first run
        engine = engine_for(next(iter(suite.tasks.values())).recipe, options, options.output)
    except (ImportError, OSError, ValueError, yaml.YAMLError) as error:
        parser().error(printable(str(error)))
    with closing(engine):
        if row:
            source = sources.get(row.method, "")
            raise SystemExit(not reproduce_row(row, source, suite, names, options.output / "check", engine, until))
        found = _trained(suite, methods, sources, names, options.output, engine, until)
    wanted = (
        (method, name) for name in names for method in methods if not suite.reason_against(suite.tasks[name], method)
    )
    lacking = [f"{method} on {name}" for method, name in wanted if name not in found.get(method, {})]
    rows = read_rows(options.output / "rows")
    if lacking:  # results of earlier runs are not shown as those of this one
        rows = {method: replace(rows[method], cells=cells) for method, cells in found.items()}
    if found:
        print(f"\n{table(rows, suite)}\n\nrows: {options.output / 'rows'}")
    if lacking:
        raise SystemExit(f"without a result, for reasons given above: {', '.join(lacking)}")
    return rows


def _trained(
    suite: Suite,
    methods: Mapping[str, OwnMethod | None],
    sources: Mapping[str, str],
    names: Sequence[str],
    output: Path,
    engine: Engine,
    until: float,
) -> dict[str, dict[str, Cell]]:
    """Train methods on the tasks that take them, write their rows, and return the cells by method and task."""
    found = dict[str, dict[str, Cell]]()
    for name in names:
        can = []
        for method in methods:
            if reason := suite.reason_against(suite.tasks[name], method):
                print(f"{name}: {method} is left out: {reason}")
            else:
                can.append(method)
        cells = evaluate(suite, suite.tasks[name], can, output, engine, until) if can else {}
        for method, cell in cells.items():
            own = methods[method]
            if own and own.source() != sources[method]:
                raise SystemExit(f"the code of {method} has changed since this command began: give it again")
            of = "" if suite.path == SUITE else str(suite.path)
            cell = replace(cell, source=sources.get(method, ""), suite=of)
            found.setdefault(method, {})[name] = cell
            _keep(output, method, name, cell, suite)
        print(f"{name}: {', '.join(cells) or 'nothing was trained'}", flush=True)
    return found


def _with_own(suite: Suite, words: Sequence[str]) -> tuple[Suite, dict[str, OwnMethod | None]]:
    """Return the suite with the user's methods, and all requested methods by name; None: one of the board."""
    methods: dict[str, OwnMethod | None] = {}
    for word in dict.fromkeys(words):
        if ":" not in word:
            if word not in suite.names:
                raise ValueError(f"no method {word}: name FILE.py:CLASS or one of {', '.join(suite.names)}")
            methods[word] = None
            continue
        own = read_own(word)
        if own.name in [*suite.names, *methods]:
            raise ValueError(f"{word}: there is a method {own.name} already, give another `name`")
        methods[own.name] = own
    new = {name: own for name, own in methods.items() if own}
    layers, spaces = ({name: getattr(own, key) for name, own in new.items()} for key in ("layer", "space"))
    return replace(suite, methods={**suite.methods, **layers}, space={**suite.space, **spaces}), methods


def _keep(output: Path, method: str, task: str, cell: Cell, suite: Suite) -> None:
    """Write a cell into the row of its method, keeping the cells of other tasks."""
    path = output / "rows" / f"{method}.json"
    with lock_folder(path.parent, until=math.inf):
        every = {**(read_row(path).cells if path.is_file() else {}), task: cell}
        order = [*(name for name in suite.tasks if name in every), *(name for name in every if name not in suite.tasks)]
        write_row(path, Row(method, suite.methods.get(method, {}), {name: every[name] for name in order}))
