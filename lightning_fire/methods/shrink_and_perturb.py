"""Shrink and perturb (Ash & Adams, NeurIPS 2020)."""

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor, nn

from lightning_fire.distributed import gathered
from lightning_fire.functional import shrink_and_perturb
from lightning_fire.methods.base.change import Change, change_values, in_place, measurable, require_finite
from lightning_fire.methods.base.optimizer_state import OptimizerPolicy, Optimizers, check_policy
from lightning_fire.methods.base.selecting import trained_by, trained_tensors
from lightning_fire.methods.initial_values import check_values
from lightning_fire.where import Parameters
from lightning_fire.where.argument import checked
from lightning_fire.where.trained import leaves_out


def plan_shrink_and_perturb(
    model: nn.Module,
    target: Mapping[str, Tensor],
    strength: float = 0.8,
    perturb: float | None = None,
    where: Parameters | None = None,
    *,
    optimizers: Optimizers = (),
    optimizer_state: OptimizerPolicy = "touched",
    measure: bool = True,
) -> Change:
    """Move parameters of a model towards given values, in place: θ ← (1 − λ)·θ + λ·θ₀. Buffers stay.

    Args:
        target: θ₀ by name: `initial_values(model)`, called when the model was new, or `fresh_values(model, seed)`. The
            same on all ranks.
        strength: λ in [0, 1] (paper: 0.8 in all vision experiments).
        perturb: Factor of the target instead of λ. Ash & Adams: `strength=0.6, perturb=0.1` and fresh values.
        where: The parameters to move. Default: `Parameters()`, all.
        optimizers: The optimizers that train the model, one or several. What none of them trains stays, with a warning.
        optimizer_state: What to drop: `"keep"` nothing, `"touched"` the state of what is moved, `"all"` everything.
        measure: Whether to fill the report, which costs some matrix products.

    Returns:
        What happened to the weights that `Weights()` selects, see `fire_`.

    Raises:
        TypeError: If an argument is of another kind.
        ValueError: If an argument is out of range, `where` matches no parameter, or a parameter has a NaN or Inf, which
            it would keep. The model is unchanged then.
        KeyError: If `target` lacks a parameter.

    Example:
        >>> from lightning_fire.methods import fresh_values
        >>> model = nn.Linear(2, 3)
        >>> report = shrink_and_perturb_(model, fresh_values(model, seed=1), strength=0.8)
        >>> sorted(report.values)
        ['dfi_normalized_after', 'dfi_normalized_before', 'seconds', 'sfe', 'sfe_normalized']
    """
    check_policy(optimizer_state, "optimizer_state")
    check_values(target)
    with trained_by(model, optimizers) as optimizers:
        selected, left_out = trained_tensors(model, checked(where, Parameters()))
        weights = measurable(model, set(selected.values())) if measure else ()
    require_finite(selected)
    moved = (
        (parameter, shrink_and_perturb(gathered(parameter), target[name], strength, perturb))
        for name, parameter in selected.items()
    )
    return replace(change_values(moved, weights, optimizers, optimizer_state), left_out=leaves_out(left_out))


shrink_and_perturb_ = in_place(plan_shrink_and_perturb)
