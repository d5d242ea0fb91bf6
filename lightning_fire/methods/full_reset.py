"""Full reset: back to the initial values, or to a fresh draw."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from lightning_fire.functional import fire
from lightning_fire.functional.orthogonal import Scale
from lightning_fire.methods.base.change import Change, change_values, in_place, measurable
from lightning_fire.methods.base.optimizer_state import OptimizerPolicy, Optimizers, check_policy
from lightning_fire.methods.base.selecting import trained_by, trained_tensors
from lightning_fire.methods.initial_values import check_values, tensors_of
from lightning_fire.where import Parameters, Weights
from lightning_fire.where.argument import check_model, checked
from lightning_fire.where.trained import leaves_out


def plan_full_reset(
    model: nn.Module,
    target: Mapping[str, Tensor],
    where: Parameters | None = None,
    *,
    optimizers: Optimizers = (),
    optimizer_state: OptimizerPolicy = "touched",
    measure: bool = True,
) -> Change:
    """Reset parameters and buffers of a model to given values, in place; what is frozen stays.

    Args:
        target: The values by name: `initial_values(model)`, called when the model was new, or
            `fresh_values(model, seed)`. The same on all ranks.
        where: The parameters to reset, such as those of a head. Default: every trainable parameter, and the buffers
            beside them: those of a part whose parameters are all frozen, or trained by no optimizer, stay.
        optimizers: The optimizers that train the model, one or several. What none of them trains stays, with a warning.
        optimizer_state: What to drop: `"keep"` nothing, `"touched"` the state of what is reset, `"all"` everything.
        measure: Whether to fill the report, which costs some matrix products.

    Returns:
        What happened to the weights that `Weights()` selects, see `fire_`.

    Raises:
        TypeError: If an argument is of another kind.
        ValueError: If `where` matches no parameter, or a value has another shape. The model is unchanged then.
        KeyError: If `target` lacks a parameter or buffer.

    Example:
        >>> from lightning_fire.methods import initial_values
        >>> model = nn.Linear(2, 3)
        >>> initial = initial_values(model)
        >>> _ = nn.init.zeros_(model.weight)
        >>> report = full_reset_(model, initial)
        >>> bool((model.weight == initial["weight"]).all())
        True
    """
    check_policy(optimizer_state, "optimizer_state")
    check_values(target)
    with trained_by(model, optimizers) as optimizers:
        tensors, left_out = trained_tensors(model, where)
        pairs = [(tensor, target[name]) for name, tensor in tensors.items()]
        weights = measurable(model, set(tensors.values())) if measure else ()
    return replace(change_values(pairs, weights, optimizers, optimizer_state), left_out=leaves_out(left_out))


full_reset_ = in_place(plan_full_reset)


@torch.no_grad()
def isometric_values(
    model: nn.Module, values: Mapping[str, Tensor], where: Weights | None = None, scale: Scale = "paper"
) -> dict[str, Tensor]:
    """Replace weights among the values of a model by their nearest isometries, as FIRE does with ten steps.

    A full reset to these values of the initial ones is a control of FIRE: the same isometry and scale, and no memory.

    Args:
        model: The model, which stays as it is.
        values: Its values by name, such as `initial_values(model)`.
        where: The weights to replace. Default: `Weights()`, those that FIRE replaces.
        scale: Scale of the new weights, see `functional.fire`.

    Returns:
        New values of all names.

    Raises:
        ValueError: If `where` matches no weight, or a value has a NaN or Inf.

    Example:
        >>> model = nn.Linear(2, 2)
        >>> weight = isometric_values(model, {"weight": torch.diag(torch.tensor([2.0, 1.0]))})["weight"]
        >>> weight.round(decimals=2)
        tensor([[1., 0.],
                [0., 1.]])
    """
    found = dict(values)
    names = {tensor: name for name, tensor in tensors_of(model).items()}
    check_model(model)
    for view in checked(where, Weights()).select(model):
        if (name := names[view.parameter]) in found:
            found[name] = found[name].clone()  # of a fused weight, once for each part
            part = view.of(found[name])
            part.write(fire(part.read(), scale=scale, groups=view.groups))
    return found
