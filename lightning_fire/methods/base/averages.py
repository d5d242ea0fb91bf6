"""Averages of weights, which start again from new weights."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from lightning_fire.distributed import is_expanded
from lightning_fire.methods.base.optimizers import parameters_of
from lightning_fire.where.layers import plain

# library and class -> the attribute with the averaged network, or with tensors in the order of the parameters
_ATTRIBUTES = {
    ("torch", "AveragedModel"): "module",
    ("timm", "ModelEma"): "ema",
    ("timm", "ModelEmaV2"): "module",
    ("timm", "ModelEmaV3"): "module",
    ("ultralytics", "ModelEMA"): "ema",
    ("ema_pytorch", "EMA"): "ema_model",
    ("diffusers", "EMAModel"): "shadow_params",
    ("torch_ema", "ExponentialMovingAverage"): "shadow_params",
    ("lightning", "WeightAveraging"): "_average_model",
    ("lightning", "StochasticWeightAveraging"): "_average_model",
}
_COUNTERS = "n_averaged", "updates", "step", "initted", "optimization_step", "num_updates"  # of these classes

Pairs = list[tuple[Tensor, Tensor]]


def as_averages(given: Any) -> list[Any]:
    """Return one average, or several, as a list.

    Raises:
        TypeError: If something else is among them.
    """
    several = isinstance(given, list | tuple) and not (given and all(isinstance(one, Tensor) for one in given))
    averages = list(given) if several else [given]
    for one in averages:
        if not isinstance(_content(one), nn.Module | Mapping | list | tuple):
            raise TypeError(
                "`averages` must be averages of weights, copies of a model or tensors by name, got"
                f" {type(one).__name__}: give its tensors, such as averages=ema.shadow"
            )
    return averages


def averages_in(things: Iterable[Any]) -> list[Any]:
    """Return the averages of known libraries among objects, their submodules, and the attributes of modules."""
    found: list[Any] = []
    for thing in things:
        held = [*thing.modules(), *vars(thing).values()] if isinstance(thing, nn.Module) else [thing]
        found += [one for one in held if _attribute(one) and getattr(one, _attribute(one), None) is not None]
    return found


def network_of(average: Any) -> nn.Module | None:
    """Return the averaged network; None of an average that only has tensors."""
    content = _content(average)
    if isinstance(content, nn.Module) and content is not average and _attribute(content):
        return network_of(content)  # Lightning holds an AveragedModel of torch
    return content if isinstance(content, nn.Module) else None


def averaged_parameters(model: nn.Module) -> set[Tensor]:
    """Return the parameters of the averages that a model holds, which no optimizer trains."""
    networks = map(network_of, averages_in([model]))
    return {parameter for network in networks if network is not None for parameter in network.parameters()}


def pairs_of(model: nn.Module, averages: Iterable[Any], optimizers: Iterable[Any]) -> Iterator[tuple[Any, Pairs]]:
    """Iterate over averages, each with pairs of a tensor of it and the tensor of a model that it averages.

    Args:
        model: The model that is averaged, whole or a part of it. Averages that it holds are included.
        averages: Further averages: objects of known libraries, copies of the model or of a part of it, tensors by name,
            or tensors in the order of the parameters.
        optimizers: The optimizers that train the model, if known: of equal parts, a trained one is averaged.

    Raises:
        ValueError: If a given average has not the names and shapes of the model or of a part of it, or those of
            several trained parts.
    """
    given, trained = list(averages), parameters_of(optimizers)
    held = [one for one in averages_in([model]) if not any(one is other for other in given)]
    inside = {part for one in (*given, *held) if (network := network_of(one)) for part in network.modules()}
    parts = [part for part in model.modules() if part not in inside]
    for average in (*given, *held):
        found = {frozenset(tensor for _, tensor in pairs): pairs for part in parts if (pairs := _pairs(average, part))}
        stepped = [
            pairs
            for pairs in found.values()
            if any(tensor.requires_grad and (not trained or tensor in trained) for _, tensor in pairs)
        ]
        name = type(average).__name__
        if len(stepped) > 1:
            raise ValueError(
                f"`averages`: {name} has the names and shapes of {len(stepped)} parts of {type(model).__name__}, and"
                " which of them it averages is not known: act on this part alone"
            )
        if found:
            pairs = (stepped or list(found.values()))[0]
            yield average, [pair for pair in pairs if not is_expanded(pair[0])]
        elif average not in held:
            raise ValueError(f"`averages`: {name} does not have the names and shapes of the model")


def averages_of_each(models: Sequence[nn.Module], averages: Sequence[Any]) -> list[list[Any]]:
    """Return the averages of each of several models.

    Raises:
        ValueError: If they are neither one of each model, in their order, nor of a ModuleList of the models.
    """
    networks = [network for network in map(network_of, averages) if _is_of_all(network, models)]
    if len(networks) == len(averages):
        return [[network[number] for network in networks] for number in range(len(models))]
    if len(averages) == len(models):
        return [[average] for average in averages]
    raise ValueError(
        "with several models `averages` must be one average of each, in their order, or one of nn.ModuleList(models)"
    )


def _is_of_all(network: nn.Module | None, models: Sequence[nn.Module]) -> TypeGuard[nn.ModuleList]:
    return isinstance(network, nn.ModuleList) and len(network) == len(models)


@torch.no_grad()
def restart_of_averages(
    models: Sequence[nn.Module], values: Mapping[Tensor, Tensor], averages: Sequence[Any], optimizers: Iterable[Any]
) -> tuple[dict[Tensor, Tensor], Callable[[], None]]:
    """Plan the restart of averages of which one or several models have new values.

    Returns:
        New values by tensor, and a function that sets the counters of the averages to 0.
    """
    new, counters = dict[Tensor, Tensor](), list[tuple[Any, str]]()
    each: list[tuple[nn.Module, Sequence[Any]]] = [(models[0], averages)]
    if len(models) > 1:
        of_all = all(_is_of_all(network_of(average), models) for average in averages)
        both = zip(models, averages_of_each(models, averages), strict=True)
        each = [(nn.ModuleList(models), averages)] if of_all else list(both)
    for average, pairs in (found for model, own in each for found in pairs_of(model, own, optimizers)):
        if any(tensor in values for _, tensor in pairs):
            new |= {copy: values.get(tensor, tensor).detach() for copy, tensor in pairs}
            while _attribute(average):
                counters += [(average, name) for name in _COUNTERS if hasattr(average, name)]
                average = _content(average)

    def count_again() -> None:
        for average, name in counters:
            value = getattr(average, name)
            if isinstance(value, Tensor):
                value.zero_()
            elif value is not None:  # as without a warm-up
                setattr(average, name, type(value)(0))

    return new, count_again


def _pairs(average: Any, part: nn.Module) -> Pairs:
    """Pair the tensors of an average with those of a module of equal names and shapes; empty if it has others."""
    network = network_of(average)
    tensors = {plain(name): tensor for name, tensor in _tensors_of(part)}
    if network is None and not isinstance(kept := _content(average), Mapping):
        for order in (list(part.parameters()), [p for p in part.parameters() if p.requires_grad]):
            if kept and [p.shape for p in order] == [tensor.shape for tensor in kept]:
                return list(zip(kept, order, strict=True))
        return []
    own = dict(kept if network is None else ((plain(name), tensor) for name, tensor in _tensors_of(network)))
    needed = own if network is None else {plain(name): p for name, p in network.named_parameters()}
    if not needed or any(name not in tensors or tensors[name].shape != each.shape for name, each in needed.items()):
        return []
    return [
        (each, tensors[name]) for name, each in own.items() if name in tensors and tensors[name].shape == each.shape
    ]


def _tensors_of(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def _attribute(thing: Any) -> str:
    """Return the attribute in which an average of a known library keeps its weights; empty for anything else."""
    kinds = ((kind.__module__.partition(".")[0], kind.__name__) for kind in type(thing).__mro__)
    return next((_ATTRIBUTES[kind] for kind in kinds if kind in _ATTRIBUTES), "")


def _content(average: Any) -> Any:
    """Return the network or the tensors of an average of a known library; anything else unchanged."""
    attribute = _attribute(average)
    return getattr(average, attribute) if attribute else average
