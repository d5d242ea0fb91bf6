"""What a selection has taken, and the table that shows it."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, overload

from torch import nn

from lightning_fire.where.candidates import Candidate, plain
from lightning_fire.where.table import columns
from lightning_fire.where.views import WeightView


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
