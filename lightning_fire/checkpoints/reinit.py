"""`lightning-fire reinit`: new values for tensors of a checkpoint, by FIRE or towards initial values."""

import argparse
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightning_fire.atomic import require_folder_of
from lightning_fire.checkpoints.folders import Folder
from lightning_fire.checkpoints.formats import open_checkpoint
from lightning_fire.checkpoints.networks import is_average
from lightning_fire.checkpoints.optimizer_states import drop as drop_states
from lightning_fire.checkpoints.optimizer_states import optimizer_files
from lightning_fire.checkpoints.options import fire_options, opened, selection_of, shared_parser
from lightning_fire.checkpoints.stored import Checkpoint, Edit, Stored
from lightning_fire.checkpoints.weights import by_tensor, select_tensors, tied_embedding
from lightning_fire.cli import run
from lightning_fire.functional import as_matrices, fire, shrink_and_perturb
from lightning_fire.printable import printable
from lightning_fire.where import Selection, WeightView
from lightning_fire.where.selection import ByName, shorten

_OWN = {  # options of each method that others do not have
    "fire": {"preset", "config", "tied", "steps", "coefficients", "scale"},
    "shrink_and_perturb": {"initial", "strength", "perturb"},
    "full_reset": {"initial"},
}

_KEPT = "optimizer states are kept, though they belong to the old weights; --drop-optimizer-states drops them"


@dataclass
class Tally:
    """Number of changed weights or other tensors, and the size of the change of the floating ones."""

    changed: int = 0
    error: float = 0.0  # sum of ‖W − W̃‖_F²
    norm: float = 0.0  # sum of ‖W‖_F² before
    zeros: list[str] = field(default_factory=list)  # with an all-zero matrix, which FIRE does not change

    @property
    def sfe_normalized(self) -> float:
        """Ratio of `error` to `norm`."""
        return self.error / self.norm if self.norm else inf if self.error else 0.0

    def add(self, before: Tensor, after: Tensor) -> None:
        """Add one weight."""
        self.changed += 1
        if before.is_floating_point():
            pieces = zip(before.flatten().split(2**20), after.flatten().split(2**20), strict=True)
            for old, new in pieces:  # converted in small parts
                self.norm += old.double().square().sum().item()
                self.error += (old.double() - new.double()).square().sum().item()


def by_fire(selection: Selection[WeightView], tally: Tally, **options: Any) -> Edit:
    """Replace the selected weights by FIRE, in place; raise a ValueError for a weight with a NaN or Inf."""
    views = by_tensor(selection)

    def change(name: str, tensor: Tensor) -> None:
        for view in (view.of(tensor) for view in views[name]):
            weight = view.read()
            _require_finite(view.name, weight, "the checkpoint")
            new = fire(weight, groups=view.groups, **options)
            if (as_matrices(weight, view.groups).abs().amax((-2, -1)) == 0).any():
                tally.zeros.append(view.name)
            tally.add(weight, new)
            view.write(new)

    return change


def towards(
    initial: Checkpoint, tensors: Sequence[Stored], new: Callable[[Tensor, Tensor], Tensor], tally: Tally
) -> Edit:
    """Move tensors towards initial values, in place; raise a ValueError for a NaN or Inf in the result."""
    held = {name: stored for stored in initial.tensors for name in stored.names}
    found = {stored: [held[name] for name in stored.names if name in held] for stored in tensors}
    lacking = [stored.name for stored in tensors if not found[stored]]
    other = [f"{s.name}: {f[0].shape}, not {s.shape}" for s, f in found.items() if f and f[0].shape != s.shape]
    if lacking or other:
        lacks = [f"lacks {len(lacking)} of {len(tensors)} tensors ({shorten(lacking)})"] if lacking else []
        lacks += [f"has {len(other)} of {len(tensors)} in another shape ({shorten(other, '; ')})"] if other else []
        raise ValueError(
            f"{initial.path} {' and '.join(lacks)}: give initial values of the same model, or leave these tensors out"
            " with --exclude"
        )
    sources = {stored.name: each[0] for stored, each in found.items()}

    @torch.no_grad()
    def change(name: str, tensor: Tensor) -> None:
        target = initial.read(sources[name].name)
        _require_finite(name, target, "the initial values")
        after = new(tensor, target)
        _require_finite(name, after, "the checkpoint")
        tally.add(tensor, after)
        tensor.copy_(after)

    return change


def _require_finite(name: str, tensor: Tensor, place: str) -> None:
    if tensor.is_floating_point() and not torch.isfinite(tensor).all():
        raise ValueError(f"NaN or Inf in {name} of {place}; nothing has been written")


def main(args: Sequence[str] | None = None) -> Tally:
    """Run the command."""
    parser = shared_parser(
        "reinit",
        "Write a copy of a checkpoint with re-initialized weights. Everything else is copied bit for bit. The output"
        " is written completely or not at all.",
    )
    parser.add_argument("-o", "--output", type=Path, required=True, help="output, of the same kind as the input")
    parser.add_argument("--force", action="store_true", help="replace an existing output; it may be the input")
    parser.add_argument("--method", choices=_OWN, default="fire", help="default: fire")
    parser.add_argument(
        "--initial", type=Path, help="checkpoint with initial values, for shrink_and_perturb and full_reset"
    )
    parser.add_argument("--strength", type=float, help="λ of shrink_and_perturb (default: 0.8)")
    parser.add_argument("--perturb", type=float, help="factor of the initial values instead of λ")
    parser.add_argument(
        "--drop-optimizer-states",
        action="store_true",
        help="drop the optimizer state in the checkpoint, which belongs to the old weights",
    )
    return run(parser, args, _run)


def _run(options: argparse.Namespace) -> Tally:
    start = time.perf_counter()
    for name in set.union(*_OWN.values()) - _OWN[options.method]:
        if getattr(options, name) is not None:
            raise ValueError(f"--{name} does not belong to --method {options.method}")
    if "initial" in _OWN[options.method] and options.initial is None:
        raise ValueError(f"--method {options.method} needs initial values: --initial FILE")
    require_folder_of(options.output)
    if os.path.lexists(options.output) and not options.force:
        raise FileExistsError(f"{options.output} exists: --force replaces it")
    checkpoint = opened(options)
    path, suffix = checkpoint.path, options.output.suffix
    if path.is_dir() and suffix in (".safetensors", ".json"):
        raise ValueError(f"{path} is a folder, so --output must name one, got {options.output}")
    if not path.is_dir() and (path.suffix == ".safetensors") != (suffix == ".safetensors"):
        raise ValueError(f"--output must be of the same kind as {path}, got {options.output}")
    tally = Tally()
    names, change, notes = _plan(options, checkpoint, tally)
    notes += _optimizer_states(checkpoint, options.drop_optimizer_states)
    notes += checkpoint.notes()
    averages = [stored.name for stored in checkpoint.tensors if len(stored.shape) > 1 and is_average(stored.name)]
    if averages and not any(map(is_average, names)):
        notes.append(f"named as averages of weights, and not changed: {shorten(averages)}")
    checkpoint.save(options.output, names, change)
    if tally.zeros:
        notes.append(f"left at zero, as zero matrices have no nearest isometry: {shorten(tally.zeros)}")
    matrices, steps = "", ""
    if options.method == "fire":
        matrices, steps = f"{tally.changed} weight matrices in ", f" (--steps {fire_options(options)['steps']})"
    print(
        f"{options.output}: {options.method} replaced {matrices}{len(names)} of {len(checkpoint.tensors)} tensors,"
        f" SFE/‖W‖² of all together {tally.sfe_normalized:.4g}{steps}, {time.perf_counter() - start:.1f} s"
    )
    print(printable("".join(f"note: {note}\n" for note in notes)), end="")
    return tally


def _plan(options: argparse.Namespace, checkpoint: Checkpoint, tally: Tally) -> tuple[list[str], Edit, list[str]]:
    """Return the names of the tensors to change, the change, and notes for the user."""
    if options.method == "fire":
        selection = selection_of(options, checkpoint)
        notes = [] if options.tied or all(view.role in ("q", "k") for view in selection) else _about_a_tie(checkpoint)
        return list(by_tensor(selection)), by_fire(selection, tally, **fire_options(options)), notes
    initial = open_checkpoint(options.initial, options.unsafe_pickle, options.key)
    everything = options.method == "full_reset"
    chosen = select_tensors(checkpoint.tensors, ByName(options.include, options.exclude), buffers=everything)
    strength = 0.8 if options.strength is None else options.strength
    moved = partial(shrink_and_perturb, strength=strength, perturb=options.perturb)
    new = (lambda weight, target: target) if everything else moved
    known = {name for stored in checkpoint.tensors for name in stored.names}
    further = [stored.name for stored in initial.tensors if known.isdisjoint(stored.names)]
    note = f"not in {checkpoint.path}, as if {initial.path} were of another model: {shorten(further)}"
    return [stored.name for stored in chosen], towards(initial, chosen, new, tally), [note] if further else []


def _about_a_tie(checkpoint: Checkpoint) -> list[str]:
    """Return a note if the output layer may be the token embedding."""
    try:
        name = tied_embedding(checkpoint.tensors)
    except ValueError:
        return []
    return [f"the token embedding {name} is kept, with an output layer tied to it: --tied takes it as well"]


def _optimizer_states(checkpoint: Checkpoint, drop: bool) -> list[str]:
    """Drop optimizer states if asked (those in files of a folder when it is saved); return notes."""
    states = checkpoint.optimizer_states()
    files, others = optimizer_files(checkpoint.path if isinstance(checkpoint, Folder) else checkpoint.path.parent)
    if isinstance(checkpoint, Folder):
        held = ", ".join(others)
        if held and drop:
            raise ValueError(f"the optimizer states in {held} cannot be dropped here: remove them from a copy")
        if drop:
            checkpoint.emptied = files
            dropped = f"optimizer states are dropped from {' and '.join(files)}"
            return [dropped if files else "no optimizer states to drop"]
        kept = f"{held} in the folder are kept: a resumed training may continue from old weights in them"
        return [*([kept] if held else []), *([_KEPT] if files else [])]
    if files and not states and drop:
        raise ValueError(f"the optimizer states are in {shorten(files)} beside the file: name the folder to drop them")
    if files and not states:
        return [f"optimizer states in {shorten(files)} beside the file belong to the old weights"]
    if not any(state["state"] for state in states):
        return ["the file has no optimizer states to drop"] if drop else []
    if drop:
        drop_states(states)  # the groups are kept, so that training can be resumed
    return ["optimizer states are dropped" if drop else _KEPT]
