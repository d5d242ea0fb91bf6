"""Averages of weights, of any library, and their restart from new weights."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from typing import Any

import torch
from torch import Tensor, nn

from lightning_fire._private import attributes_of
from lightning_fire.distributed import local
from lightning_fire.methods.base.transfers import read
from lightning_fire.where.layers import injected_heads, plain
from lightning_fire.where.selection import some
from lightning_fire.where.trained import why_not_trained

_MODULES = "module", "ema", "ema_model", "_average_model"  # attributes that hold the averaged network
_COUNTERS = "n_averaged", "num_updates", "optimization_step", "updates", "step", "initted"
_DECAYS = "decay", "beta", "multi_avg_fn", "avg_fn"


@torch.no_grad()
def followers(
    model: nn.Module, values: Mapping[Tensor, Tensor], averages: Iterable[Any] = ()
) -> tuple[dict[Tensor, Tensor], Callable[[], None]]:
    """Plan the restart of the averages of a model from its values after a change.

    Args:
        model: The model, with any averages that it holds itself: torch's `AveragedModel`, `ModelEmaV3` of timm,
            `EMAModel` of diffusers, `ExponentialMovingAverage` of torch_ema, `EMA` of ema_pytorch and the like.
        values: New values of tensors of the model.
        averages: Further averages: such objects, copies of the model or of a part of it, tensors by name, or tensors in
            the order of the parameters.

    Returns:
        New values by tensor, and a function that resets counters that are not tensors.
    """
    new, resets = dict[Tensor, Tensor](), list[tuple[Any, str, Any]]()
    for average, pairs in averages_of(model, averages):
        if not any(tensor in values for _, tensor in pairs):
            continue
        new |= {copy: values.get(tensor, tensor).detach() for copy, tensor in pairs}
        for counter in _COUNTERS if average is not model and is_average(average) else ():
            value = getattr(average, counter, None)
            if isinstance(value, Tensor):
                new[value] = torch.minimum(value, torch.zeros_like(value))
            elif isinstance(value, int):
                resets.append((average, counter, type(value)(0)))

    def then() -> None:
        for reset in resets:
            setattr(*reset)

    return new, then


@torch.no_grad()
def averages_of(model: nn.Module, averages: Iterable[Any] = ()) -> Iterator[tuple[Any, list[tuple[Tensor, Tensor]]]]:
    """Iterate over the averages of a model, given and held by it, each with its pairs of tensors (average, model).

    Raises a ValueError if one of `averages` does not have the shapes of the model or of a part of it.
    """
    given = list(averages)
    for average, pairs in _paired(model, given):
        if pairs is not None:
            yield average, pairs
        elif any(average is one for one in given):
            raise ValueError(f"`averages`: {type(average).__name__} does not have the names and shapes of the model")


@torch.no_grad()
def averages_by_model(models: nn.ModuleList, averages: Sequence[Any]) -> list[list[Any]]:
    """Assign given averages to several models; an average of all of them, or of none of them, goes to each."""
    tensors = {id(average): {tensor for _, tensor in pairs or ()} for average, pairs in _paired(models, averages)}
    own = [{tensor for _, tensor in _stored(model)} for model in models]
    return [[one for one in averages if not tensors[id(one)] or tensors[id(one)] & each] for each in own]


def _paired(model: nn.Module, given: Iterable[Any]) -> Iterator[tuple[Any, list[tuple[Tensor, Tensor]] | None]]:
    known = list({id(average): average for average in (*given, *averages_in([model]))}.values())
    inside = {id(part) for average in known for part in _parts(average)}
    for average in known:
        yield average, _pairs(average, [part for part in model.modules() if part is model or id(part) not in inside])


def averages_in(things: Iterable[Any]) -> list[Any]:
    """Return the averages among the attributes of objects and of submodules."""
    found: dict[int, Any] = {}
    for thing in things:
        parts = list(thing.modules()) if isinstance(thing, nn.Module) else [thing]
        for part in parts:
            held = [part, *vars(part).values()] if hasattr(part, "__dict__") else [part]
            found |= {id(one): one for one in held if is_average(one)}
    return list(found.values())


def as_averages(given: Any) -> list[Any]:
    """Return one average, or several, as a list.

    Raises:
        TypeError: If something else is among them.
    """
    several = isinstance(given, list | tuple) and not (given and all(isinstance(one, Tensor) for one in given))
    averages = list(given) if several else [given]
    for one in averages:
        if not (isinstance(one, nn.Module) or is_average(one) or _named(one) is not None):
            kind = type(one).__name__
            raise TypeError(f"`averages` must be averages of weights, copies of a model or tensors by name, got {kind}")
    return averages


def is_average(thing: Any) -> bool:
    """Return whether an object is an average of weights, by its attributes."""
    if isinstance(thing, type) or not hasattr(thing, "__dict__"):
        return False
    own, *held = attributes_of(thing)
    counted = any(
        name in own or any(name in names and names[name] is not None for names in held)
        for name in (*_COUNTERS, *_DECAYS)
    )
    return counted and (_inner(thing) is not None or _named(thing) is not None)


def networks_of(averages: Iterable[Any]) -> list[nn.Module]:
    """Return the averaged networks: those that averages hold, and averages that are networks themselves."""
    found = (_inner(one) if is_average(one) else one for one in averages)
    return [network for network in found if isinstance(network, nn.Module)]


def averaged(model: nn.Module) -> set[Tensor]:
    """Return the parameters of the averages that a model holds, which no optimizer trains."""
    return {parameter for network in networks_of(averages_in([model])) for parameter in network.parameters()}


@torch.no_grad()
def unknown_copies(model: nn.Module) -> list[str]:
    """Name parts of a model that may be averages which do not restart, in at most one sentence.

    Candidates are untrained submodules, buffers and tensors in attributes with the shapes of a trained part and values
    near its values. The values of an average are near, those of a teacher are not.
    """
    known = averaged(model)
    parts = {plain(path): part for path, part in model.named_modules()}
    trained: dict[tuple[torch.Size, ...], list[list[Tensor]]] = {}  # by the shapes of their weights
    for weights in ([*part.parameters()] for part in parts.values()):
        if any(weight.ndim > 1 for weight in weights) and not any(map(why_not_trained, weights)):
            trained.setdefault(_shapes(weights), []).append(weights)
    found: list[str] = []
    _, frozen = injected_heads(model)
    originals = (path for path in parts if path.endswith(".original_module"))  # of `modules_to_save` of PEFT
    frozen += tuple(path for path in originals if path.replace("original_module", "modules_to_save") in parts)

    def depth(path: str) -> int:
        return len(path.split(".")) if path else 0

    for _, level in groupby(sorted(parts, key=depth), depth):  # parts of a candidate are not candidates
        alike: list[tuple[list[str], Sequence[Tensor]]] = []
        for path in level:
            part = parts[path]
            if path.startswith(frozen):  # copies that must stay
                continue
            if is_average(part) or known.intersection(part.parameters()):
                continue
            weights, inside = list(part.parameters()), any(path.startswith(f"{other}.") for other in found)
            if not inside and "target" not in path and all(map(why_not_trained, weights)):
                alike.append(([path], weights))
            buffers = {name: buffer for name, buffer in part.named_buffers(recurse=False) if buffer.is_floating_point()}
            alike.append(([f"{path}.{name}".strip(".") for name in buffers], list(buffers.values())))
            for name, value in vars(part).items():
                kept = None if name.startswith("_") or is_average(value) else _named(value)
                tensors = list(kept.values() if isinstance(kept, Mapping) else kept or ())
                alike.append(([f"{path}.{name}".strip(".")], tensors))
        near = _are_near([tensors for _, tensors in alike], trained)
        found += [name for (names, _), is_near in zip(alike, near, strict=True) if is_near for name in names]
    if not found:
        return []
    return [
        f"does not restart {some(found, most=3)}: close to trained weights, but not trained. If this is an average of"
        " the weights, it keeps the old ones: give it as averages=…, or copy the new weights to it in `sync_targets()`"
    ]


def _shapes(tensors: Iterable[Tensor]) -> tuple[torch.Size, ...]:
    return tuple(tensor.shape for tensor in tensors)


def _are_near(
    groups: Sequence[Sequence[Tensor]], trained: Mapping[tuple[torch.Size, ...], Sequence[Sequence[Tensor]]]
) -> list[bool]:
    """Return whether tensors have the shapes of a trained part and are nearer to its values than to zero."""
    pairs = [(n, group, weights) for n, group in enumerate(groups) for weights in trained.get(_shapes(group), ())]
    moves = [_distance(a, b) for _, group, weights in pairs for a, b in zip(group, weights, strict=True)]
    known = dict.fromkeys(weight for *_, weights in pairs for weight in weights)
    norms = {weight: torch.linalg.vector_norm(local(weight).float()) for weight in known}
    values = iter(read([*moves, *norms.values()]))
    distances, near = [list(islice(values, len(group))) for _, group, _ in pairs], [False] * len(groups)
    lengths = dict(zip(norms, values, strict=True))
    for (number, _, weights), moved in zip(pairs, distances, strict=True):
        near[number] |= sum(moved) < 0.5 * sum(lengths[weight] for weight in weights)
    return near


def _inner(average: Any) -> nn.Module | None:
    """Return the averaged network of an average."""
    found = (getattr(average, name, None) for name in _MODULES)
    inner = next((one for one in found if isinstance(one, nn.Module)), None)
    return (_inner(inner) or inner) if inner is not None and is_average(inner) else inner


def _parts(average: Any) -> list[nn.Module]:
    """Return the modules that belong to an average."""
    inner = _inner(average) if is_average(average) else average
    own = [average] if isinstance(average, nn.Module) and is_average(average) else []  # may also hold the model itself
    return [*own, *(inner.modules() if isinstance(inner, nn.Module) else ())]


def _named(average: Any) -> Mapping[str, Tensor] | list[Tensor] | None:
    """Return the tensors that an average keeps without a network, by name or in order."""
    if isinstance(names := getattr(average, "m_name2s_name", None), Mapping):  # LitEma, of latent diffusion
        return {name: getattr(average, stored) for name, stored in names.items()}
    for kept in (average, getattr(average, "shadow_params", None), getattr(average, "shadow", None)):
        if isinstance(kept, Mapping) and kept and all(isinstance(value, Tensor) for value in kept.values()):
            return kept
        if isinstance(kept, list | tuple) and kept and all(isinstance(value, Tensor) for value in kept):
            return list(kept)
    return None


def _pairs(average: Any, parts: Sequence[nn.Module]) -> list[tuple[Tensor, Tensor]] | None:
    """Pair the tensors of an average with those of the part that it averages.

    Of several parts with the same shapes, take the nearest trained one: a target network, itself an average, may be
    nearer.
    """
    kept = _named(average)
    inner = _inner(average) if is_average(average) else average if isinstance(average, nn.Module) else None
    if kept is None and inner is not None:
        kept = {plain(name): tensor for name, tensor in _stored(inner)}
        needed = {plain(name) for name, _ in inner.named_parameters()}
    else:
        needed = set(kept) if isinstance(kept, Mapping) else set()
    found = []
    for part in parts:
        if isinstance(kept, Mapping):
            own = {plain(name): tensor for name, tensor in _stored(part)}
            if needed and all(name in own and own[name].shape == kept[name].shape for name in needed):
                common = [name for name in kept if name in own and own[name].shape == kept[name].shape]
                found.append([(kept[name], own[name]) for name in common])
        elif kept is not None:
            for trainable in False, True:
                order = [p for p in part.parameters() if p.requires_grad or not trainable]
                if [p.shape for p in order] == [tensor.shape for tensor in kept]:
                    found.append(list(zip(kept, order, strict=True)))
    trained = [pairs for pairs in found if not all(why_not_trained(tensor) for _, tensor in pairs)]
    found = trained or found
    if len(found) < 2:
        return found[0] if found else None
    return min(found, key=lambda pairs: sum(read(list(map(_distance, *zip(*pairs, strict=True))))))


def _stored(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def _distance(copy: Tensor, tensor: Tensor) -> Tensor:
    a, b = local(copy), local(tensor)
    length: Tensor = torch.linalg.vector_norm(a.to(b.device).float() - b.float())
    return length
