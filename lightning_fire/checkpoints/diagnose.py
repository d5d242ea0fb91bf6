"""Metrics of each weight of a checkpoint, computed without its model."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

from tqdm import tqdm

from lightning_fire.checkpoints.opening import Checkpoint
from lightning_fire.checkpoints.spectrum import QUANTILES, Health, health
from lightning_fire.checkpoints.weights import by_tensor, filled
from lightning_fire.where import Selection
from lightning_fire.where.selection import columns

# word of --sort: attribute, head of the column
METRICS = {
    "dfi": ("dfi_normalized", "DfI"),
    "condition": ("condition", "condition"),
    "stable_rank": ("stable_rank", "stable rank"),
    "norm": ("norm", "‖W‖"),
    "sfe": ("sfe_normalized", "SFE/‖W‖²"),
}


@dataclass(frozen=True)
class Diagnosis:
    """Metrics of one weight of a checkpoint.

    Attributes:
        name: Its name; a part of a fused weight ends with its letter.
        shape: Shape `(out, in, *kernel)`.
        health: Its metrics; None if it holds a NaN or Inf.
    """

    name: str
    shape: tuple[int, ...]
    health: Health | None

    def value(self, metric: str) -> float:
        """Return one metric; Inf where the weight is not finite.

        Args:
            metric: A key of `METRICS`.
        """
        return getattr(self.health, METRICS[metric][0]) if self.health else inf


def diagnose(checkpoint: Checkpoint, selection: Selection, **options: Any) -> list[Diagnosis]:
    """Compute metrics of the selected weights of a checkpoint, with one tensor in memory at a time.

    Args:
        checkpoint: The checkpoint.
        selection: Weights of it.
        options: Of FIRE: `steps`, `coefficients`, `scale`, see `functional.fire`.

    Returns:
        In the order of the checkpoint.
    """
    rows = []
    for name, views in tqdm(by_tensor(selection).items(), unit="tensor", leave=False, disable=None):
        tensor = checkpoint.read(name)
        rows += [Diagnosis(view.name, view.shape, health(filled(view, tensor).read(), **options)) for view in views]
    return rows


def table(rows: Sequence[Diagnosis]) -> str:
    """Format a diagnosis as a table, with means."""
    cells = [("weight", "shape", *(head for _, head in METRICS.values()))]
    for row in rows:
        values = [_short(row.value(metric)) for metric in METRICS] if row.health else ["NaN or Inf", *[""] * 4]
        cells.append((row.name, "×".join(map(str, row.shape)), *values))
    return f"{columns(cells)}\n{_summary(rows)}"


def _summary(rows: Sequence[Diagnosis]) -> str:
    known = [row.health for row in rows if row.health]
    if not known:
        return f"{len(rows)} weight matrices, none of them finite"
    norm = sum(each.norm**2 for each in known)
    moved = sum(each.sfe_normalized * each.norm**2 for each in known if isfinite(each.sfe_normalized))
    text = f"{len(rows)} weight matrices: mean DfI {_short(sum(each.dfi_normalized for each in known) / len(known))}"
    return text + (f", SFE/‖W‖² of all together {_short(moved / norm)}" if norm else "")


def _short(value: float) -> str:
    """Four digits, and no exponent below a million."""
    return f"{value:.3e}" if isfinite(value) and abs(value) >= 1e6 else f"{value:#.4g}".rstrip(".")


def as_json(rows: Sequence[Diagnosis]) -> list[dict[str, Any]]:
    """Return a diagnosis as JSON values: null instead of NaN and Inf."""
    return [_entry(row) for row in rows]


def _entry(row: Diagnosis) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": row.name, "shape": list(row.shape), "finite": row.health is not None}
    for metric, (attribute, _) in METRICS.items():
        value = row.value(metric)
        entry[attribute] = value if isfinite(value) else None
    quantiles = row.health.quantiles if row.health else [None] * len(QUANTILES)
    entry["singular_values"] = dict(zip(("min", "10%", "median", "90%", "max"), quantiles, strict=True))
    return entry
