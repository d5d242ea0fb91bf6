"""The result of a selection, with a table of the whole model, and selection by name."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar, overload

T = TypeVar("T", covariant=True)


class Row(NamedTuple):
    """A parameter or layer in the table of a selection; `reason` is `taken` or the reason why it is not taken."""

    name: str
    shape: tuple[int, ...]
    views: str
    reason: str


class Selection(Sequence[T]):
    """Selected items of a model in module order, accessible by index or name. `print` shows the table of all items.

    Args:
        taken: Views of weights, layers of hidden units, or parameters, by name.
        rows: The table.
        heads: Headers of the first three columns of the table; empty columns are not shown.
        counted: Amount taken, such as `3 of 5 weight matrices`.
        preset: Name of the preset, if any.
        left_out: Names, with reasons, of weights that are not taken because they share memory with others, or because
            the order of the parts of a fused projection, or the layer, is unknown.
        untrained: Names of items that are not taken only because no optimizer trains them.

    Example:
        >>> selection = Selection({"fc.bias": 7}, [Row("fc.bias", (3,), "", "taken")], ("name", "size", ""), "1 number")
        >>> selection[0], selection["fc.bias"], "fc.bias" in selection, list(selection.items())
        (7, 7, True, [('fc.bias', 7)])
        >>> print(selection)
        name     size
        fc.bias  3     taken
        1 number taken
    """

    def __init__(
        self,
        taken: Mapping[str, T],
        rows: Iterable[Row],
        heads: tuple[str, str, str],
        counted: str,
        *,
        preset: str = "",
        left_out: Iterable[str] = (),
        untrained: Iterable[str] = (),
    ):
        self._taken, self.rows, self.heads, self.counted = dict(taken), list(rows), heads, counted
        self.preset, self.left_out, self.untrained = preset, list(left_out), list(untrained)

    def __len__(self) -> int:
        return len(self._taken)

    def __iter__(self) -> Iterator[T]:
        return iter(self._taken.values())

    def __contains__(self, item: object) -> bool:
        return item in self._taken if isinstance(item, str) else any(item is each for each in self)

    @overload
    def __getitem__(self, at: int | str) -> T: ...
    @overload
    def __getitem__(self, at: slice) -> list[T]: ...
    def __getitem__(self, at: int | str | slice) -> T | list[T]:
        return self._taken[at] if isinstance(at, str) else list(self)[at]

    @property
    def names(self) -> list[str]:
        """Names of the selected items."""
        return list(self._taken)

    def items(self) -> Iterable[tuple[str, T]]:
        """Return pairs of name and item, as of a mapping."""
        return self._taken.items()

    def values(self) -> Iterable[T]:
        """Return the items, as of a mapping."""
        return self._taken.values()

    @property
    def summary(self) -> str:
        """Amount taken, and the preset."""
        return f"{self.counted}{self._by}"

    @property
    def _by(self) -> str:
        return f", preset {self.preset}" if self.preset else ""

    def __str__(self) -> str:
        cells = [(*self.heads, ""), *((row.name, format_shape(row.shape), row.views, row.reason) for row in self.rows)]
        shown = [column for column in zip(*cells, strict=True) if any(column)]
        return f"{columns(list(zip(*shown, strict=True)))}\n{self.counted} taken{self._by}"


def reasons_in_words(rows: Iterable[Row]) -> str:
    """Join the distinct reasons of rows, each with the number of rows and the first names."""
    names: dict[str, list[str]] = {}
    for row in rows:
        names.setdefault(row.reason, []).append(row.name)
    return shorten([f"{len(them)} {reason} ({shorten(them, most=2)})" for reason, them in names.items()], "; ")


def format_shape(shape: Sequence[int]) -> str:
    """Write a shape as `8×3×3×3`."""
    return "×".join(map(str, shape))


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Align the cells of a table."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def shorten(items: Sequence[str], separator: str = ", ", most: int = 8) -> str:
    """Join the first few items and count the others."""
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return separator.join(items[:most]) + more


class ByName:
    """Selection of names that match a pattern of `include` (if given) and no pattern of `exclude`."""

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
        """Return why an item with these names is not taken; empty if it is. One excluded name excludes it."""
        if self.include is not None and not any(re.search(p, name) for p in self.include for name in names):
            return "not included"
        return "excluded" if any(re.search(p, name) for p in self.exclude or () for name in names) else ""

    def check(self, names: Sequence[str], thing: str = "weight", never: Mapping[str, str] | None = None) -> None:
        """Raise a ValueError if a pattern matches none of the names: it is misspelt, or only for names `never` taken.

        Args:
            names: Names that may be taken.
            thing: What they are.
            never: Kinds of parameters that are never taken, by name.
        """
        for argument in ("include", "exclude"):
            for pattern in getattr(self, argument) or ():
                if not any(re.search(pattern, name) for name in names):
                    found = {name: kind for name, kind in (never or {}).items() if re.search(pattern, name)}
                    only = shorten([f"{name} ({kind})" for name, kind in found.items()], most=2)
                    only = f", only {only}, never taken" if found else ""
                    raise ValueError(
                        f"`{argument}` has {pattern!r}, which matches no {thing}{only}; there are:"
                        f" {shorten(names) or 'none'}"
                    )


def patterns(argument: str, given: list[str] | None) -> list[str] | None:
    """Return a copy of some regular expressions; raise a ValueError if they are not a list of such."""
    if isinstance(given, str):  # its letters would be patterns
        raise ValueError(f"`{argument}` must be a list of regular expressions, got the string {given!r}")
    for pattern in given or ():
        try:
            re.compile(pattern)
        except (re.error, TypeError) as error:
            raise ValueError(f"`{argument}` has {pattern!r}, not a regular expression: {error}") from error
    return None if given is None else list(given)
