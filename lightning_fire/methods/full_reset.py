"""Full reset: back to the initial values, or to a fresh draw."""

from collections.abc import Mapping

from torch import Tensor, nn

from lightning_fire.methods.change import Change, change_values, in_place, measurable
from lightning_fire.methods.initial_values import tensors_of
from lightning_fire.methods.optimizer_state import OptimizerPolicy, Optimizers
from lightning_fire.where import Parameters


def plan_full_reset(
    model: nn.Module,
    target: Mapping[str, Tensor],
    where: Parameters | None = None,
    *,
    optimizers: Optimizers = (),
    optimizer_state: OptimizerPolicy = "touched",
    measure: bool = True,
) -> Change:
    """Reset parameters and buffers of a model to given values, in place.

    Args:
        target: The values by name: `initial_values(model)`, called when the model was new, or
            `fresh_values(model, seed)`. The same on all ranks.
        where: The parameters to reset, such as those of a head. Default: every parameter and buffer.
        optimizers: The optimizers that train the model, one or several.
        optimizer_state: What to drop: `"keep"` nothing, `"touched"` the state of what is reset, `"all"` everything.
        measure: Whether to fill the report, which costs some matrix products.

    Returns:
        What happened to the weights that `Weights()` selects, see `fire_`.

    Raises:
        ValueError: If `where` matches no parameter.
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
    tensors = tensors_of(model)
    chosen = set(tensors.values() if where is None else where.select(model).values())
    pairs = [(tensor, target[name]) for name, tensor in tensors.items() if tensor in chosen]
    weights = measurable(model, chosen) if measure else ()
    return change_values(pairs, weights, optimizers, optimizer_state)


full_reset_ = in_place(plan_full_reset)
