"""Shrink and perturb (Ash & Adams, NeurIPS 2020)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lightning_fire.distributed import gathered
from lightning_fire.functional import shrink_and_perturb
from lightning_fire.methods.base.change import Change, new_values, require_finite, with_report
from lightning_fire.methods.base.loop import Loop
from lightning_fire.methods.base.optimizers import OptimizerPolicy, Optimizers
from lightning_fire.methods.base.report import Report
from lightning_fire.methods.base.reset import ResetMethod, trained_tensors
from lightning_fire.methods.initial_values import check_values
from lightning_fire.where import Parameters
from lightning_fire.where.selection import shorten


@dataclass(frozen=True)
class ShrinkAndPerturb(ResetMethod):
    """Moves parameters towards their initial values, or towards new random values: θ ← (1 − λ)·θ + λ·θ₀.

    It moves every trainable parameter, scales and biases of normalization layers included; not buffers.

    Args:
        strength: λ in [0, 1] (paper: 0.8 in all vision experiments).
        perturb: Factor of θ₀ instead of λ. Ash & Adams: `strength=0.6, perturb=0.1, fresh_seed=0`.
        where: The parameters to move. Default: `Parameters()`, all.
        fresh_seed: Seed of new values by each layer's `reset_parameters`; the number of the event is added. The same on
            every rank. Default: θ₀ are the values of the model when it was new, as in the paper.
        optimizer_state: Whose optimizer state to drop: `keep`, `touched` or `all`.

    Raises:
        TypeError: If `where` is a selection of a wrong kind.
        ValueError: If an argument is out of range.
    """

    name: ClassVar[str] = "shrink_and_perturb"
    default_where: ClassVar[Parameters] = Parameters()

    strength: float = 0.8
    perturb: float | None = None
    where: Parameters | None = None
    fresh_seed: int | None = None
    optimizer_state: OptimizerPolicy = "touched"

    def __post_init__(self) -> None:
        super().__post_init__()
        nothing = torch.zeros(1, device="cpu")
        shrink_and_perturb(nothing, nothing, self.strength, self.perturb)  # checks them

    def plan(self, model: nn.Module, training: Loop) -> Change:
        """Compute the moved parameters."""
        tensors, left_out = trained_tensors(model, training.trained(model), self.selection)
        if self.strength and (stale := _with_spectral_norm(model, tensors)):
            left_out += [f"leaves the estimates of spectral_norm in {shorten(stale)}, which follow in the next passes"]
        target = self.target_values(model, training, tensors)
        require_finite(tensors)
        moved = (
            (tensor, shrink_and_perturb(gathered(tensor), target[name], self.strength, self.perturb))
            for name, tensor in tensors.items()
        )
        return with_report(Change(new_values(moved)), model, training.measure, left_out)


def shrink_and_perturb_(
    model: nn.Module | Sequence[nn.Module],
    target: Mapping[str, Tensor],
    strength: float = 0.8,
    perturb: float | None = None,
    where: Parameters | None = None,
    *,
    optimizers: Optimizers = (),
    optimizer_state: OptimizerPolicy = "touched",
    averages: Any = (),
) -> Report:
    """Move parameters of a model towards given values, in place. Function form of `ShrinkAndPerturb`.

    Args:
        model: Any module, or a list of them, which change together, see `EventMethod.__call__`.
        target: θ₀ by name: `initial_values(model)`, called when the model was new, or `fresh_values(model, seed)`. The
            same on all ranks.
        optimizers: The optimizers that train the model, one or several. Weights that none of them trains stay, with a
            warning.
        averages: One or several averages of the weights, which restart from the new weights, see `Loop`.

    Returns:
        Report on the weights that `Weights()` selects, see `fire_`.

    Raises:
        TypeError: If an argument has a wrong type.
        ValueError: If an argument is out of range, `where` matches no parameter, or a parameter has a NaN or Inf. The
            model is unchanged then.
        KeyError: If `target` lacks a parameter.

    Example:
        >>> from lightning_fire.methods import fresh_values
        >>> model = nn.Linear(2, 3)
        >>> report = shrink_and_perturb_(model, fresh_values(model, seed=1), strength=0.8)
        >>> sorted(report.values)
        ['dfi_normalized_after', 'dfi_normalized_before', 'seconds', 'sfe', 'sfe_normalized']
    """
    check_values(target)
    method = ShrinkAndPerturb(strength, perturb, where, optimizer_state=optimizer_state)
    return method(model, Loop(optimizers, initial=target, averages=averages))


def _with_spectral_norm(model: nn.Module, tensors: Mapping[str, Tensor]) -> list[str]:
    """Return the names of moved weights that a layer divides by an estimate of their largest singular value."""
    old = [name for name, _ in model.named_buffers() if name.endswith("weight_u")]
    new = [name for name, _ in model.named_buffers() if name.endswith("parametrizations.weight.0._u")]
    origins = [f"{name.removesuffix('u')}orig" for name in old]
    origins += [f"{name.removesuffix('0._u')}original" for name in new]
    return [name for name in origins if name in tensors]
