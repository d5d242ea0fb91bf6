"""Rows of the board with numbers that are known."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from lightning_fire.board.row import Cell, Row
from lightning_fire.board.suite import read_suite

SUITE = read_suite()
SEEDS = range(10)


def row(method: str, **values: Sequence[Sequence[float]]) -> Row:
    """Return a row of a method: by task its values, those of vanilla and those of scratch."""
    versions = {"torch": "2", "lightning": "2", "python": "3"}
    rest: dict[str, Any] = {"curve": [(0.1, 0.01), (0.2, 0.02)], "seconds": 1.0, "recipe": "", "versions": versions}
    of = {task: Cell(*(dict(enumerate(v)) for v in three), {}, {}, **rest) for task, three in values.items()}
    return Row(method, {}, of)


def around(rng: np.random.Generator, middle: float, spread: float = 0.01) -> list[float]:
    """Draw a value for each of ten seeds."""
    return list(rng.normal(middle, spread, len(SEEDS)))
