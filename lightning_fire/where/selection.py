"""What a selection has taken, and the table that shows it."""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple, overload

from torch import nn

from lightning_fire.where.layers import Candidate, plain
from lightning_fire.where.weight_view import WeightView


class Row(NamedTuple):
    """A parameter in the table of a selection."""

    name: str
    shape: tuple[int, ...]
    views: str
    verdict: str


class Selection(Sequence[WeightView]):
    """The selected weights, in module order. `print` shows every parameter of the model, taken or why not.

    Args:
        views: The selected weights.
        rows: The table.
    """

    def __init__(self, views: Sequence[WeightView], rows: Sequence[Row]):
        self._views, self.rows = list(views), list(rows)

    @overload
    def __getitem__(self, index: int) -> WeightView: ...
    @overload
    def __getitem__(self, index: slice) -> list[WeightView]: ...
    def __getitem__(self, index):
        return self._views[index]

    def __len__(self) -> int:
        return len(self._views)

    def __str__(self) -> str:
        cells = [
            ("parameter", "shape", "matrices", ""),
            *((r.name, times(r.shape), r.views, r.verdict) for r in self.rows),
        ]
        return f"{columns(cells)}\n{len(self)} weight matrices taken"


def table_of(module: nn.Module, verdicts: dict[nn.Parameter, tuple[Candidate, str]]) -> list[Row]:
    """List every parameter of a model, with what becomes of it.

    Args:
        module: The model.
        verdicts: For each parameter that could be selected, what it is and what was decided.
    """
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    owners = dict(module.named_modules(remove_duplicate=False))
    rows = []
    for parameter, aliases in names.items():
        owner = owners[aliases[0].rpartition(".")[0]]
        aliases = [plain(alias) for alias in aliases]
        name, views = aliases[0], ""
        if parameter in verdicts:
            candidate, verdict = verdicts[parameter]
            name, views = candidate.name, ", ".join(f"{v.role} {times(v.shape)}".strip() for v in candidate.views)
        else:
            verdict = _why_no_candidate(name, parameter, type(owner).__name__)
        tied = _tied(alias for alias in aliases if alias != name)
        rows.append(Row(name, tuple(parameter.shape), views, verdict + tied))
    return rows


def _why_no_candidate(name: str, parameter: nn.Parameter, owner: str) -> str:
    if "parametrizations." in name or name.endswith(("weight_g", "weight_v", "weight_orig")):
        return "part of a parametrised weight"
    if parameter.ndim < 2:
        return "not a matrix"
    return f"{owner}: neither Linear nor convolution"


def _tied(names: Iterable[str]) -> str:
    listed = ", ".join(names)
    return f" (tied with {listed})" if listed else ""


def times(shape: Sequence[int]) -> str:
    """Write a shape for people, as `8×3×3×3`.

    Args:
        shape: The shape.
    """
    return "×".join(map(str, shape))


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Align the cells of a table.

    Args:
        rows: Rows of equally many cells, the first of them the head.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


class ByName:
    """Selects by name: one is taken if some pattern of `include` (if given) matches it, and none of `exclude` does.

    Args:
        include: Regular expressions, searched in the names; default: every name is taken.
        exclude: Likewise, to leave out.

    Raises:
        ValueError: If one of them is no list of regular expressions.
    """

    def __init__(self, include: list[str] | None = None, exclude: list[str] | None = None):
        self.include, self.exclude = _patterns("include", include), _patterns("exclude", exclude)

    def __repr__(self) -> str:
        settings = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in settings.items())})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def refusal(self, name: str) -> str:
        """Say why a name is not taken; empty if it is.

        Args:
            name: The name.
        """
        if self.include is not None and not any(re.search(pattern, name) for pattern in self.include):
            return "not included"
        return "excluded" if any(re.search(pattern, name) for pattern in self.exclude or ()) else ""

    def check(self, names: Sequence[str], thing: str = "weight") -> None:
        """Refuse patterns that match nothing: they are misspelt.

        Args:
            names: All names there are.
            thing: What they are names of.

        Raises:
            ValueError: Names the pattern, and what there is.
        """
        for argument in ("include", "exclude"):
            for pattern in getattr(self, argument) or ():
                if not any(re.search(pattern, name) for name in names):
                    raise ValueError(
                        f"`{argument}` has {pattern!r}, which matches no {thing}; there are: {some(names) or 'none'}"
                    )


def some(items: Sequence[str], separator: str = ", ", most: int = 8) -> str:
    """Join the first few items, and say how many more there are.

    Args:
        items: The items.
        separator: Between them.
        most: How many to name.
    """
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return separator.join(items[:most]) + more


def _patterns(argument: str, patterns: list[str] | None) -> list[str] | None:
    if isinstance(patterns, str):  # its letters would be taken for patterns
        raise ValueError(f"`{argument}` must be a list of regular expressions, got the string {patterns!r}")
    for pattern in patterns or ():
        try:
            re.compile(pattern)
        except (re.error, TypeError) as error:
            raise ValueError(f"`{argument}` has {pattern!r}, which is no regular expression: {error}") from error
    return None if patterns is None else list(patterns)
