"""Search for weights followed by a normalization layer, which cancels their scale before the output."""

import re
from collections.abc import Iterable

from torch import nn

from lightning_fire.where.weight_view import WeightView

_NORM = re.compile("(?<!Response)[Nn]orm(?!al(?!i[sz]))|NORM")


def normalized_weights(model: nn.Module, views: Iterable[WeightView]) -> set[str]:
    """Find the weights that a normalization layer follows in module order, directly or later.

    Module order is the order of assignment, which in most networks is the order of computation.

    Args:
        model: Any module.
        views: Selected weights of the model.

    Returns:
        Names of those views.

    Example:
        >>> from lightning_fire.where import Weights
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 2))
        >>> normalized_weights(model, Weights().select(model))
        {'0.weight'}
    """
    place: dict[nn.Parameter, int] = {}
    for index, module in enumerate(model.modules()):
        for parameter in module.parameters(recurse=False):
            place.setdefault(parameter, index)
    last = max(normalization_layers(model), default=-1)
    return {view.name for view in views if place[view.parameter] < last}


def normalization_layers(model: nn.Module) -> list[int]:
    """Return the positions of the normalization layers of a model in the order of its modules, from 0.

    A normalization layer is a module with `norm` in the name of its class; `weight_norm`, layers named after the normal
    distribution, and response normalization, which keeps the scale of its input, are not.
    """
    return [
        index
        for index, (name, module) in enumerate(model.named_modules())
        if _NORM.search(type(module).__name__) and ".parametrizations." not in f".{name}."
    ]
