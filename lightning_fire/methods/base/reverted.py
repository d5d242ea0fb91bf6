"""Warn if changed weights point in their old direction again, once an optimizer has stepped."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import LBFGS, Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.weak import WeakIdKeyDictionary

from lightning_fire.distributed import local, rank, show_warning, to_list

_ENTRIES = 1024  # of each weight, spread over rows and columns
_TURNED = 0.1  # distance of unit vectors: a change that turns a weight by less is not looked at
_BACK = 0.25  # of that distance, left if the weight has returned


class _Sample(NamedTuple):
    """Entries of a weight before and after a change, float32 (n,), as unit vectors, and the steps that it has seen."""

    name: str
    old: Tensor
    new: Tensor
    steps: int

    def is_back(self, now: Tensor) -> Tensor:
        """Return whether it has returned, a bool scalar: its direction, and most signs that the change has turned."""
        way, left = ((other - self.old).norm() for other in (self.new, now))
        turned = self.old * self.new < 0
        signs_back = (turned & (self.old * now > 0)).sum() * 2 > turned.sum()
        returned: Tensor = (way > _TURNED) & (left < _BACK * way) & signs_back
        return returned


_samples = WeakIdKeyDictionary()  # by weight, until it is looked at
_hooks: list[Any] = []  # one, for all optimizers, from the first event on


@torch.no_grad()
def look_at(names: Mapping[Tensor, str], values: Mapping[Tensor, Tensor]) -> Callable[[], None]:
    """Plan one look at weights with new values, before their second step after a change, whichever optimizer steps.

    A warning then names those that are back: they were overwritten by copies from which an optimizer steps, by an
    average, or by a checkpoint. Directions and signs are compared, as constraints that normalize, clip or mask weights
    after each step keep the signs. Later overwriting is not seen, nor is that of vectors.

    Args:
        names: Names of the parameters.
        values: New values by tensor; the tensors still hold the old ones.

    Returns:
        Function that starts to wait for the steps; call it when the values are written.
    """
    chosen = [p for p in values if p in names and p.ndim > 1 and p.is_floating_point() and not p.is_meta]
    samples = {p: _Sample(names[p], _direction(p), _direction(values[p]), 0) for p in chosen}

    def wait() -> None:
        if not _hooks:
            _hooks.append(register_optimizer_step_pre_hook(_look))
        for parameter, sample in samples.items():
            _samples[parameter] = sample

    return wait


@torch.no_grad()
def _look(optimizer: Optimizer, *_: Any) -> None:
    if torch.compiler.is_compiling() or not _samples or _is_capturing():
        return
    found: list[tuple[str, Tensor]] = []
    for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
        if (sample := _samples.pop(parameter, None)) is None:
            continue
        if sample.steps == 0:
            _samples[parameter] = _Sample(sample.name, sample.old, sample.new, steps=1)
        elif not isinstance(optimizer, LBFGS):  # whose step may find the old minimum
            found.append((sample.name, sample.is_back(_direction(parameter))))
    returned = [name for (name, _), value in zip(found, to_list([flag for _, flag in found]), strict=True) if value]
    if returned and rank() == 0:
        names = ", ".join(returned[:3]) + (f" and {len(returned) - 3} more" if len(returned) > 3 else "")
        show_warning(
            f"An event has no effect: after a step of {type(optimizer).__name__} {names} again point(s) in the old"
            " direction. Something has overwritten the new weights: an optimizer that steps copies of its own (make a"
            " new one after the event), an average that was swapped in, or a checkpoint that was loaded."
        )


def _direction(tensor: Tensor) -> Tensor:
    """Return entries at fixed positions, found by an odd stride, as a unit vector."""
    entries = local(tensor).reshape(-1)
    entries = entries[:: entries.numel() // _ENTRIES | 1].float()
    return torch.nn.functional.normalize(entries, dim=0)


def _is_capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
