"""`lightning-fire board`: evaluate a method on the board, or check a row."""

import argparse
import hashlib
import importlib
import math
import os
import platform
import re
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from lightning_fire.board.measured import measured
from lightning_fire.board.row import Cell, Row, read_row, read_rows, write_row
from lightning_fire.board.suite import SUITE, Suite, read_suite
from lightning_fire.board.table import table
from lightning_fire.experiments.compare import add_engine_arguments, engine_for
from lightning_fire.experiments.runs import at_work_in, merged
from lightning_fire.experiments.source_of import importing_from_here, source_of
from lightning_fire.experiments.sweep import as_config
from lightning_fire.printable import printable
from lightning_fire.recipe.recipe import VANILLA, check_name

_PACKAGES = ("lightning-fire", "torch", "lightning", "numpy")
_CHECKED = 2  # number of seeds to train again


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
        epilog=f"tasks: {', '.join(suite.tasks)}. Methods: {', '.join([VANILLA, *suite.methods])}.",
    )
    parser.add_argument(
        "methods",
        nargs="*",
        metavar="METHOD",
        help="method of the board, or your own: FILE.py:CLASS in the current folder, with a class attribute"
        " search_space such as {'strength': [0.1, 0.5, 0.9]}",
    )
    parser.add_argument("--tasks", nargs="+", metavar="TASK", help="tasks of the board (default: all)")
    parser.add_argument(
        "--output", type=Path, default=Path("runs/board"), help="folder for runs and rows (default: runs/board)"
    )
    parser.add_argument("--suite", type=Path, default=SUITE, help="YAML file with another suite than the board's")
    parser.add_argument(
        "--check",
        type=Path,
        metavar="ROW",
        help=f"train {_CHECKED} seeds of each cell of a row again, with its settings, and compare the numbers; your"
        " own method must be in the current folder",
    )
    add_engine_arguments(parser)
    return parser


def main(args: Sequence[str] | None = None) -> dict[str, Row]:
    """Run the command; return the rows in its folder, by method."""
    options = parser().parse_args(args)
    try:
        suite = read_suite(options.suite)
        names = options.tasks or list(suite.tasks)
        if unknown := [name for name in names if name not in suite.tasks]:
            raise ValueError(f"--tasks: no {', '.join(unknown)}; there are {', '.join(suite.tasks)}")
        row = read_row(options.check) if options.check else None
        words = [_asked(row)] if row else options.methods
        if not words:
            raise ValueError(f"name a method, FILE.py:CLASS or one of {', '.join(suite.methods)}")
        suite, methods, sources = _with_own(suite, words)
        first = suite.tasks[names[0]].recipe
        engine = engine_for(first, options, options.output)
    except (ImportError, OSError, ValueError, yaml.YAMLError) as error:
        parser().error(printable(str(error)))
    with closing(engine):
        if row:
            if row.source != sources.get(row.method, ""):
                print(f"the code of {row.method} differs from that of the row")
            raise SystemExit(_check(row, suite, names, options, engine))
        for name in names:
            task = suite.tasks[name]
            for method in methods:
                if method in task.left_out:
                    print(f"{name}: {method} is left out: {task.left_out[method]}")
            can = [method for method in methods if method not in task.left_out]
            cells = measured(suite, task, can, options.output, engine, options.max_minutes) if can else {}
            for method, cell in cells.items():
                _keep(options.output, method, name, cell, suite, sources.get(method, ""))
            print(f"{name}: {', '.join(cells) or 'nothing was trained'}", flush=True)
    rows = read_rows(options.output / "rows")
    print(f"\n{table(rows, suite)}\n\nrows: {options.output / 'rows'}")
    return rows


def _with_own(suite: Suite, words: Sequence[str]) -> tuple[Suite, list[str], dict[str, str]]:
    """Return the suite with the user's methods, the names of all requested methods, and digests of the user's code."""
    layers, space, names, sources = dict(suite.methods), dict(suite.space), [], {}
    for word in words:
        file, colon, kind = word.partition(":")
        if not colon:
            own = {name for task in suite.tasks.values() for name in task.recipe.methods}
            if word not in {*suite.methods, *own, VANILLA}:
                raise ValueError(f"no method {word}: name FILE.py:CLASS or one of {', '.join(suite.methods)}")
            names.append(word)
            continue
        found = _class_of(file, kind)
        name = getattr(found, "name", None) or re.sub(r"(?<!^)(?=[A-Z])", "_", kind).lower()
        check_name(name)
        if name in suite.methods or name == VANILLA:
            raise ValueError(f"{word}: the board has a method {name}, give another `name`")
        layers[name] = {"method": {"class_path": f"{Path(file).stem}.{kind}"}}
        space[name] = getattr(found, "search_space", {})
        sources[name] = hashlib.sha256(source_of(found).encode()).hexdigest()
        names.append(name)
    return replace(suite, methods=layers, space=space), list(dict.fromkeys(names)), sources


def _asked(row: Row) -> str:
    """Return the command-line name of the method of a row."""
    if not row.source:
        return row.method
    module, _, kind = row.config["method"]["class_path"].rpartition(".")
    return f"{module}.py:{kind}"


def _class_of(file: str, kind: str) -> Any:
    """Return a class of a file in the current folder, from which trainings import it."""
    path = Path(file)
    if path.suffix != ".py" or path.parent != Path() or not path.is_file():
        raise ValueError(f"{file}:{kind}: {file} must be a Python file in the current folder")
    try:
        with importing_from_here():
            found = getattr(importlib.import_module(path.stem), kind, None)
    except Exception as error:  # the file is the user's, and may raise anything
        raise ValueError(f"{file} cannot be imported: {type(error).__name__}: {error}") from None
    if not isinstance(found, type):
        raise ValueError(f"{file} has no class {kind}")
    return found


def _keep(output: Path, method: str, task: str, cell: Cell, suite: Suite, source: str) -> None:
    """Write a cell into the row of its method, keeping the cells of other tasks."""
    import torch

    path = output / "rows" / f"{method}.json"
    vector = torch.backends.cpu.get_cpu_capability()  # other vector instructions round differently
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, {vector}"
    new = Row(method, suite.methods.get(method, {}), source, _versions(), machine)
    with at_work_in(path.parent, wait=True):
        before = read_row(path).cells if path.is_file() else {}
        every = {**before, task: cell}
        write_row(path, replace(new, cells={name: every[name] for name in suite.tasks if name in every}))


def _versions() -> dict[str, str]:
    return {package: version(package) for package in _PACKAGES} | {"python": platform.python_version()}


def _check(row: Row, suite: Suite, names: Sequence[str], options: argparse.Namespace, engine: Any) -> int:
    """Train some seeds of a row again; print the differences; return 1 if the numbers do not agree."""
    far = 0
    for name in [name for name in names if name in row.cells]:
        cell, task = row.cells[name], suite.tasks[name]
        layer = merged(suite.recipe_of(task).methods.get(row.method, {}), as_config(dict(cell.setting)))
        task = replace(task, recipe=replace(task.recipe, methods={**task.recipe.methods, row.method: layer}), space={})
        again = replace(suite, seeds=list(cell.values)[:_CHECKED], space={})
        found = measured(again, task, [row.method], options.output / "check", engine, options.max_minutes)
        now = found[row.method].values if found else {}
        distance = max((abs(now[seed] - cell.values[seed]) for seed in now), default=math.nan)
        spread = float(np.std([*cell.values.values()], ddof=1)) if len(cell.values) > 1 else 0.0
        recipe = "" if found and found[row.method].recipe == cell.recipe else ", by another recipe or setting"
        same = distance <= 1e-6
        far += not (same or distance <= spread)
        seeds = ", ".join(map(str, now)) or "none"
        told = "equal" if same else f"differ by up to {distance:.3g}; standard deviation between seeds {spread:.3g}"
        print(f"{name}: seeds {seeds}: {told}{recipe}", flush=True)
    versions = _versions()
    if changed := [
        f"{key} {old}, here {versions.get(key)}" for key, old in row.versions.items() if old != versions.get(key)
    ]:
        print(f"versions of the row: {'; '.join(changed)}")
    return int(far > 0)
