"""The weights that a selection has taken, with a table of all others, and selection by name."""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from lightning_fire.where.weight_view import WeightView


class Row(NamedTuple):
    """A parameter in the table of a selection; `reason` is why it is not taken, or `taken`."""

    name: str
    shape: tuple[int, ...]
    views: str
    reason: str


class Selection(list[WeightView]):
    """The selected weights, in module order. `print` shows every parameter of the model, taken or why not.

    Args:
        views: The selected weights.
        rows: The table.
        left_out: Names, with reasons, of weights that would be taken if they did not share memory with others, if the
            order of the parts of a fused projection were known, or if their layer were.
        preset: Name of the preset that has selected.
        total: Number of weight matrices in the model, taken or not.
        untrained: Names of weights that would be taken if some optimizer trained them.
    """

    def __init__(
        self,
        views: Iterable[WeightView],
        rows: Iterable[Row],
        left_out: Iterable[str],
        preset: str,
        total: int,
        untrained: Iterable[str] = (),
    ):
        super().__init__(views)
        self.rows, self.left_out, self.untrained = list(rows), list(left_out), list(untrained)
        self.preset, self.total = preset, total

    @property
    def summary(self) -> str:
        """How many weight matrices of how many are taken, and by which preset."""
        return f"{len(self)} of {self.total} weight matrices, preset {self.preset}"

    def __str__(self) -> str:
        cells = [(row.name, times(row.shape), row.views, row.reason) for row in self.rows]
        taken = f"{len(self)} of {self.total} weight matrices taken, preset {self.preset}"
        return f"{columns([('parameter', 'shape', 'matrices', ''), *cells])}\n{taken}"


def about(rows: Iterable[Row]) -> str:
    """Join the reasons of rows, each once, with the number of rows and the names of the first."""
    names: dict[str, list[str]] = {}
    for row in rows:
        names.setdefault(row.reason, []).append(row.name)
    return some([f"{len(them)} {reason} ({some(them, most=2)})" for reason, them in names.items()], "; ")


def times(shape: Sequence[int]) -> str:
    """Write a shape as `8×3×3×3`."""
    return "×".join(map(str, shape))


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Align the cells of a table."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def some(items: Sequence[str], separator: str = ", ", most: int = 8) -> str:
    """Join the first few items, and count the others."""
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return separator.join(items[:most]) + more


def _matches(patterns: Sequence[str], names: Sequence[str]) -> bool:
    return any(re.search(pattern, name) for pattern in patterns for name in names)


class ByName:
    """Selection of names that match one of `include` (if given) and none of `exclude` (regular expressions)."""

    def __init__(self, include: list[str] | None = None, exclude: list[str] | None = None):
        self.include, self.exclude = patterns("include", include), patterns("exclude", exclude)

    def __repr__(self) -> str:
        always = ("preset", "include", "exclude")
        settings = {name: value for name, value in vars(self).items() if value or name in always}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in settings.items())})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def reason(self, *names: str) -> str:
        """Return why something of these names is not taken; empty if it is. One excluded name excludes it."""
        if self.include is not None and not _matches(self.include, names):
            return "not included"
        return "excluded" if _matches(self.exclude or (), names) else ""

    def check(self, names: Sequence[str], thing: str = "weight") -> None:
        """Raise a ValueError if a pattern matches none of the names: it is misspelt."""
        for argument in ("include", "exclude"):
            for pattern in getattr(self, argument) or ():
                if not any(re.search(pattern, name) for name in names):
                    raise ValueError(
                        f"`{argument}` has {pattern!r}, which matches no {thing}; there are: {some(names) or 'none'}"
                    )


def patterns(argument: str, given: list[str] | None) -> list[str] | None:
    """Return a copy of some regular expressions; raise a ValueError if they are not a list of such."""
    if isinstance(given, str):  # its letters would be taken for patterns
        raise ValueError(f"`{argument}` must be a list of regular expressions, got the string {given!r}")
    for pattern in given or ():
        try:
            re.compile(pattern)
        except (re.error, TypeError) as error:
            raise ValueError(f"`{argument}` has {pattern!r}, not a regular expression: {error}") from error
    return None if given is None else list(given)
