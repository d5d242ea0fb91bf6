"""`lightning-fire diagnose`."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from lightning_fire.checkpoints.atomic import atomic_file, require_free
from lightning_fire.checkpoints.diagnose import METRICS, Diagnosis, as_json, diagnose, table
from lightning_fire.checkpoints.opening import Checkpoint, open_checkpoint
from lightning_fire.checkpoints.options import add_checkpoint, add_fire, add_selection, fire_options
from lightning_fire.checkpoints.printable import printable
from lightning_fire.checkpoints.weights import not_taken, select_weights
from lightning_fire.where import Selection, Weights
from lightning_fire.where.selection import about


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="lightning-fire diagnose",
        allow_abbrev=False,
        description="Show for each weight matrix of a checkpoint how far it is from an isometry (normalised DfI), its"
        " condition number, stable rank and norm, and how far FIRE would move it (SFE). Needs no model and trains"
        " nothing. Of a convolution: means over the kernel positions, the condition number of the worst.",
    )
    add_checkpoint(parser)
    add_selection(parser)
    add_fire(parser)
    parser.add_argument("--sort", choices=METRICS, help="the largest of this metric first (default: as in the file)")
    parser.add_argument("--all", action="store_true", help="list each tensor that is not taken, and why not")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all numbers there")
    parser.add_argument("--picture", type=Path, metavar="FILE.png", help="also draw a figure there")
    return parser


def main(args: Sequence[str] | None = None) -> list[Diagnosis]:
    """Run the command."""
    options = parser().parse_args(args)
    try:
        return _run(options)
    except (ValueError, OSError, ImportError, RuntimeError, MemoryError) as error:
        raise SystemExit(f"lightning-fire diagnose: error: {printable(str(error))}") from None


def _run(options: argparse.Namespace) -> list[Diagnosis]:
    for output in filter(None, (options.json, options.picture)):
        require_free(output, force=not (output.exists() and output.samefile(options.checkpoint)))
    checkpoint = open_checkpoint(options.checkpoint, options.unsafe_pickle)
    selection = select_weights(checkpoint.tensors, Weights(options.preset or "auto", options.include, options.exclude))
    rows = diagnose(checkpoint, selection, **fire_options(options))
    if options.sort:
        rows.sort(key=lambda row: -row.value(options.sort))
    print(f"{options.checkpoint}: {checkpoint.description}\n")
    print(printable(table(rows)))
    if left := not_taken(selection):
        print(printable(f"\n{selection}" if options.all else f"not taken: {about(left)}"))
    if options.json:
        _write_json(options, checkpoint, selection, rows)
    if options.picture:
        from lightning_fire.checkpoints.picture import draw  # matplotlib takes a second to load

        draw(rows, options.picture, title=options.checkpoint.name)
    return rows


def _write_json(
    options: argparse.Namespace, checkpoint: Checkpoint, selection: Selection, rows: Sequence[Diagnosis]
) -> None:
    content = {
        "checkpoint": str(options.checkpoint),
        "description": checkpoint.description,
        "fire": {"steps": 10, "coefficients": "cubic", "scale": "paper", **fire_options(options)},
        "weights": as_json(rows),
        "not_taken": [
            {"name": row.name, "shape": list(row.shape), "reason": row.reason} for row in not_taken(selection)
        ],
    }
    with atomic_file(options.json) as part:
        part.write_text(json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False), encoding="utf-8")
