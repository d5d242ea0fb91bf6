"""`lightning-fire diagnose`: metrics of each weight of a checkpoint, computed without its model."""

import argparse
import json
from collections.abc import Sequence
from math import isfinite, isnan
from pathlib import Path
from typing import Any

from tqdm import tqdm

from lightning_fire.atomic import atomic_file, require_folder_of
from lightning_fire.checkpoints.diagnosis import QUANTILES, Diagnosis, diagnosis_of, mean_ratio
from lightning_fire.checkpoints.formats import open_checkpoint
from lightning_fire.checkpoints.options import fire_options, opened, selection_of, shared_parser
from lightning_fire.checkpoints.stored import Checkpoint
from lightning_fire.checkpoints.weights import by_tensor
from lightning_fire.cli import run
from lightning_fire.functional import as_matrices, dfi_normalized
from lightning_fire.printable import printable, without_nan
from lightning_fire.where import Selection, WeightView
from lightning_fire.where.selection import columns, format_shape, reasons_in_words, shorten

# choice of --sort: attribute, column header
METRICS = {
    "dfi": ("dfi_normalized", "DfI"),
    "ratio": ("dfi_ratio", "× reference"),
    "condition": ("condition", "condition"),
    "stable_rank": ("stable_rank", "stable rank"),
    "norm": ("norm", "‖W‖"),
    "sfe": ("sfe_normalized", "SFE/‖W‖²"),
}

_STDOUT = Path("-")
_NO_CONCLUSION = """\
The ratio follows the length of training and is larger after small initial weights, also where nothing is lost. No
threshold of it is valid for another training: it does not show whether the network still learns well. To decide,
compare continuing (vanilla), new training (scratch) and FIRE on your data, by `lightning_fire.decide` in your own
script, or with your recipe (`lightning-fire init FOLDER` writes one to begin with):
  lightning-fire compare RECIPE --from CHECKPOINT --methods fire --seeds 5"""


def diagnose(
    checkpoint: Checkpoint, selection: Selection[WeightView], reference: Checkpoint | None = None, **options: Any
) -> list[Diagnosis]:
    """Compute metrics of the selected weights of a checkpoint, with one tensor in memory at a time.

    Args:
        checkpoint: The checkpoint.
        selection: Its selected weights.
        reference: A checkpoint of the same network; None: new weights of the same shapes.
        options: Options of FIRE: `steps`, `coefficients`, `scale`, see `functional.fire`.

    Returns:
        One entry per weight, in the order of the checkpoint.

    Raises:
        ValueError: If the reference lacks a weight, has it in another shape, or with a NaN or Inf.
    """
    rows = []
    held = {name: stored for stored in reference.tensors for name in stored.names} if reference else {}
    for name, views in tqdm(by_tensor(selection).items(), unit="tensor", leave=False, disable=None):
        tensor = checkpoint.read(name)
        if reference and (name not in held or held[name].shape != tuple(tensor.shape)):
            raise ValueError(f"{reference.path} has no {name} of shape {tuple(tensor.shape)}")
        other = reference.read(held[name].name) if reference else None
        for view in views:
            of_other = None if other is None else _dfi(view.of(other))
            rows.append(diagnosis_of(view.of(tensor).read(), view.name, of_other, groups=view.groups, **options))
    return rows


def _dfi(view: WeightView) -> float:
    value = dfi_normalized(as_matrices(view.read().double(), view.groups)).mean().item()
    if not isfinite(value):
        raise ValueError(f"NaN or Inf in {view.name} of the reference")
    return value


def table(rows: Sequence[Diagnosis], steps: int | str) -> str:
    """Format a diagnosis as a table, with means and the steps of FIRE."""
    cells = [("weight", "shape", *(head for _, head in METRICS.values()))]
    for row in rows:
        values = [_short(getattr(row, attribute)) for attribute, _ in METRICS.values()]
        cells.append(
            (row.name, format_shape(row.shape), *(values if isfinite(row.norm) else ["NaN or Inf", *[""] * 5]))
        )
    known = [row for row in rows if isfinite(row.norm)]
    if not known:
        return f"{columns(cells)}\n{len(rows)} weight matrices, none of them finite"
    mean = _short(sum(each.dfi_normalized for each in known) / len(known))
    bad = [row.name for row in rows if not isfinite(row.norm)]
    summary = f"{len(rows)} weight matrices: mean DfI {mean}{f' (of {len(known)} of {len(rows)})' if bad else ''}"
    if norm := sum(each.norm**2 for each in known):
        moved = sum(each.sfe_normalized * each.norm**2 for each in known if isfinite(each.sfe_normalized))
        summary += f", SFE/‖W‖² of {'these' if bad else 'all'} together {_short(moved / norm)} (--steps {steps})"
    return f"{columns(cells)}\n{summary}{f'; NaN or Inf in {shorten(bad)}' if bad else ''}"


def _short(value: float) -> str:
    """Format a value with four digits, without exponent below a million; a dash for NaN."""
    if isnan(value):
        return "–"
    return f"{value:.3e}" if isfinite(value) and abs(value) >= 1e6 else f"{value:#.4g}".rstrip(".")


def as_json(rows: Sequence[Diagnosis]) -> list[dict[str, Any]]:
    """Return a diagnosis as JSON values: null instead of NaN and Inf."""
    entries = []
    for row in rows:
        entry: dict[str, Any] = {"name": row.name, "shape": list(row.shape), "finite": isfinite(row.norm)}
        numbers = {name: getattr(row, name) for name in ("dfi_reference", *(name for name, _ in METRICS.values()))}
        entries.append({**entry, **numbers, "singular_values": dict(zip(QUANTILES, row.quantiles, strict=True))})
    return [*map(without_nan, entries)]


def main(args: Sequence[str] | None = None) -> list[Diagnosis]:
    """Run the command."""
    parser = shared_parser(
        "diagnose",
        "Show for each weight matrix of a checkpoint its distance from an isometry (normalized DfI), its condition"
        " number, stable rank and norm, and how far FIRE would move it (SFE). Needs no model and does not train. For a"
        " convolution: means over the kernel positions, and the largest condition number. Also prints the ratio of DfI"
        " to that of a reference, and the command for deciding whether to act.",
    )
    parser.add_argument(
        "--reference",
        type=Path,
        metavar="FILE",
        help="earlier checkpoint of the same network (default: new weights of the same shapes)",
    )
    parser.add_argument("--sort", choices=METRICS, help="sort by this metric, largest first (default: file order)")
    parser.add_argument("--all", action="store_true", help="also list tensors that are not selected, with reasons")
    parser.add_argument(
        "--json",
        type=Path,
        nargs="?",
        const=_STDOUT,
        metavar="FILE",
        help="also write all numbers to FILE; without FILE: print a JSON list of the rows instead of the table",
    )
    return run(parser, args, _run)


def _run(options: argparse.Namespace) -> list[Diagnosis]:
    if options.json:
        require_folder_of(options.json)
        if options.json.resolve() == options.checkpoint.resolve():
            raise ValueError(f"{options.json} is the checkpoint: name another file")
    checkpoint = opened(options)
    selection = selection_of(options, checkpoint)
    reference = open_checkpoint(options.reference, options.unsafe_pickle, options.key) if options.reference else None
    fire = fire_options(options)
    rows = diagnose(checkpoint, selection, reference, **fire)
    ratio = mean_ratio(row.dfi_ratio for row in rows)
    if options.sort:
        rows.sort(key=lambda row: -getattr(row, METRICS[options.sort][0]))
    taken = by_tensor(selection)
    left = [row for row in selection.rows if row.name not in taken]
    if options.json == _STDOUT:
        print(json.dumps(as_json(rows), indent=1, allow_nan=False))  # control characters are escaped
    else:
        print(printable(f"{options.checkpoint}: {checkpoint.description}\n\n{table(rows, fire['steps'])}"))
        if left:
            print(printable(f"\n{selection}" if options.all else f"not taken: {reasons_in_words(left)}"))
        of = "the reference" if reference else "new weights"
        about_ratio = f"DfI × {ratio:.3g} that of {of} (geometric mean)\n{_NO_CONCLUSION}"
        unknown = "DfI has no reference: each weight is an isometry there, or not finite"
        print(f"\n{unknown if isnan(ratio) else about_ratio}")
    if options.json not in (None, _STDOUT):
        content = {
            "checkpoint": str(options.checkpoint),
            "description": checkpoint.description,
            "fire": fire,
            "dfi_ratio": None if isnan(ratio) else ratio,
            "weights": as_json(rows),
            "not_taken": [{"name": row.name, "shape": list(row.shape), "reason": row.reason} for row in left],
        }
        with atomic_file(options.json) as part:
            part.write_text(json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False), encoding="utf-8")
    return rows
