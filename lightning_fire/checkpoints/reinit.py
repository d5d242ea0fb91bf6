"""New values for tensors of a checkpoint: by FIRE, or towards initial values that another file holds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import torch
from torch import Tensor

from lightning_fire.checkpoints.opening import Checkpoint
from lightning_fire.checkpoints.stored import Change, Stored
from lightning_fire.checkpoints.weights import by_tensor, filled
from lightning_fire.functional import as_matrices, fire
from lightning_fire.where import Selection
from lightning_fire.where.selection import some

_PIECE = 2**20  # numbers to convert at a time


@dataclass
class Tally:
    """Number of changed weights, and how much they changed.

    Attributes:
        changed: Number of weights, or other tensors, that were replaced.
        error: Sum of ‖W − W̃‖_F² over the floating ones.
        norm: Sum of ‖W‖_F² over them, before.
        zeros: Names of weights with an all-zero matrix, which FIRE leaves as it is.
    """

    changed: int = 0
    error: float = 0.0
    norm: float = 0.0
    zeros: list[str] = field(default_factory=list)

    @property
    def sfe_normalized(self) -> float:
        """`error` by `norm`."""
        return self.error / self.norm if self.norm else inf if self.error else 0.0

    def add(self, before: Tensor, after: Tensor) -> None:
        """Add one weight."""
        self.changed += 1
        if before.is_floating_point():
            pieces = zip(before.flatten().split(_PIECE), after.flatten().split(_PIECE), strict=True)
            for old, new in ((old.double(), new.double()) for old, new in pieces):
                self.norm += old.square().sum().item()
                self.error += (old - new).square().sum().item()


def by_fire(selection: Selection, tally: Tally, **options: Any) -> Change:
    """Replace the selected weights by FIRE, in place; a ValueError for a weight with a NaN or Inf."""
    views = by_tensor(selection)

    def change(name: str, tensor: Tensor) -> None:
        for view in (filled(view, tensor) for view in views[name]):
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
) -> Change:
    """Move tensors towards initial values, in place; a ValueError for a NaN or Inf in what they would become."""
    sources = _sources(initial, tensors)

    @torch.no_grad()
    def change(name: str, tensor: Tensor) -> None:
        target = initial.read(sources[name])
        _require_finite(name, target, "the initial values")
        after = new(tensor, target)
        _require_finite(name, after, "the checkpoint")
        tally.add(tensor, after)
        tensor.copy_(after)

    return change


def _sources(initial: Checkpoint, tensors: Sequence[Stored]) -> dict[str, str]:
    held = {name: stored for stored in initial.tensors for name in stored.names}
    found = {stored.name: next((held[name] for name in stored.names if name in held), None) for stored in tensors}
    if missing := [name for name, source in found.items() if source is None]:
        raise ValueError(f"{initial.path} has no initial values of {some(missing)}: leave them out with --exclude")
    sources = {}
    for stored in tensors:
        source = found[stored.name]
        if source.shape != stored.shape:
            raise ValueError(f"{initial.path} holds {stored.name} with shape {source.shape}, not {stored.shape}")
        sources[stored.name] = source.name
    return sources


def _require_finite(name: str, tensor: Tensor, place: str) -> None:
    if tensor.is_floating_point() and not torch.isfinite(tensor).all():
        raise ValueError(f"NaN or Inf in {name} of {place}; nothing has been written")
