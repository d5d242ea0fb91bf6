"""Which weights a normalization layer follows, so that their scale is undone before the output."""

from collections.abc import Iterable

from torch import nn

from lightning_fire.where.weight_view import WeightView


def normalized_weights(model: nn.Module, views: Iterable[WeightView]) -> set[str]:
    """Find the weights after which a normalization layer comes in the order of modules, at once or later.

    A normalization layer is a module with `norm` in the name of its class. The order of modules is that in which they
    were assigned, which in most networks is that of the computation.

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
    last = -1
    place: dict[nn.Parameter, int] = {}
    for index, (name, module) in enumerate(model.named_modules()):
        if "norm" in type(module).__name__.lower() and ".parametrizations." not in f".{name}.":
            last = index
        for parameter in module.parameters(recurse=False):
            place.setdefault(parameter, index)
    return {view.name for view in views if place[view.parameter] < last}
