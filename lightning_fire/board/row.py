"""A row of the board: results of a method on each task, in a file that another person can check."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lightning_fire.atomic import atomic_file
from lightning_fire.printable import without_nan

Values = Mapping[int, float]


@dataclass(frozen=True)
class Cell:
    """Result of a method on a task.

    Attributes:
        values: Result of each run, by seed; NaN: the run has diverged.
        vanilla: The same without a method, trained on the same machine.
        scratch: The same with a full reset at each change.
        setting: The chosen hyper-parameters; empty: nothing was tuned.
        tried: Mean result of each tried setting over the tuning seeds, by name.
        curve: Mean over the seeds at each point of the curve, and its standard deviation (n - 1), `(points, 2)`.
        seconds: Wall-clock time of a run, median over the seeds: a pause of the machine is not counted.
        recipe: SHA-256 of the recipe with the method.
        source: SHA-256 of the code of a method that is not shipped; empty: shipped.
        versions: Versions of the packages.
        machine: Processor and system.
        suite: File of the suite, as it was named; empty: the board's.
    """

    values: Values
    vanilla: Values
    scratch: Values
    setting: Mapping[str, Any]
    tried: Mapping[str, float]
    curve: Sequence[tuple[float, float]]
    seconds: float
    recipe: str
    source: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    machine: str = ""
    suite: str = ""


@dataclass(frozen=True)
class Row:
    """Results of a method on the tasks of the board.

    Attributes:
        method: Its name.
        config: Configuration that it adds to a recipe.
        cells: Cells by task.
    """

    method: str
    config: Mapping[str, Any]
    cells: Mapping[str, Cell] = field(default_factory=dict)


def write_row(path: Path, row: Row) -> None:
    """Write a row as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as part:
        part.write_text(json.dumps(without_nan(asdict(row)), indent=1) + "\n", encoding="utf-8")


def read_row(path: Path) -> Row:
    """Read a row.

    Raises:
        ValueError: If the file is not a row.
        OSError: If it does not exist, or cannot be read.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        cells = {task: Cell(**_with_nan(cell)) for task, cell in content.pop("cells").items()}
        return Row(**content, cells=cells)
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} does not exist") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} is not a row of the board: {error}") from None


def read_rows(folder: Path) -> dict[str, Row]:
    """Read the rows of a folder, by method."""
    rows = (read_row(path) for path in sorted(folder.glob("*.json")))
    return {row.method: row for row in rows}


def _with_nan(cell: dict[str, Any]) -> dict[str, Any]:
    """Convert the seeds of a cell from JSON's strings to integers, and None to NaN."""
    for key in ("values", "vanilla", "scratch"):
        cell[key] = {int(seed): _number(value) for seed, value in cell[key].items()}
    cell["tried"] = {name: _number(value) for name, value in cell["tried"].items()}
    cell["curve"] = [(_number(middle), _number(spread)) for middle, spread in cell["curve"]]
    return cell


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)
