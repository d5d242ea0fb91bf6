"""Copies of trained weights that may be averages, and are not known to restart."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_fire.distributed import local
from lightning_fire.methods.base.averages import distance, paired
from lightning_fire.methods.base.transfers import read
from lightning_fire.where.layers import injected_heads, plain
from lightning_fire.where.selection import some
from lightning_fire.where.trained import is_stepped, why_not_trained

_DEPTH = 4  # of containers and objects in an attribute
_MOST = 10_000  # things looked at
_LIBRARIES = {"builtins", "functools", "lightning", "lightning_fabric", "pytorch_lightning", "torch", "torchmetrics"}
_OF_MODULES = vars(nn.Module()).keys()
_KEPT = "best", "init"  # words in the names of copies that are meant to stay
_Parts = dict[tuple[torch.Size, ...], dict[tuple[int, ...], list[Tensor]]]


@torch.no_grad()
def unknown_copies(
    model: nn.Module, averages: Iterable[Any] = (), holders: Mapping[str, Any] | None = None, targets: bool = False
) -> dict[str, Tensor]:
    """Find copies of trained weights that may be averages which do not restart.

    Candidates are untrained submodules and buffers of the model, and modules, tensors in containers and flat vectors
    in attributes, a few objects deep. A copy has the shapes of a part that is trained, and values near its values: the
    values of an average are near, those of a teacher are not. Closures and NumPy arrays are not searched.

    Args:
        model: The model.
        averages: Averages which restart, beside those that the model holds.
        holders: Further objects that may hold copies, such as callbacks, by name.
        targets: Whether names with `target` are candidates, too: a plain loop copies its target networks by itself.

    Returns:
        One tensor of each copy, by the name of the copy.
    """
    restart = {id(copy) for _, pairs in paired(model, averages) for copy, _ in pairs or ()}
    parts, flat = _trained_parts(model)
    found = dict[str, Tensor]()
    for _, level in groupby(sorted(_candidates(model, holders or {}, targets), key=_level), _level):
        groups = [
            (name, held[0], pairs)
            for name, held in level
            if restart.isdisjoint(map(id, held))
            and not any(word in name.lower() for word in _KEPT)
            and not any(name.startswith(f"{other}.") for other in found)  # a part of a copy
            for pairs in _pairs(held, parts, flat)
        ]
        near = _are_near([pairs for *_, pairs in groups])
        found |= {name: copy for (name, copy, _), is_near in zip(groups, near, strict=True) if is_near}
    return found


def _level(candidate: tuple[str, list[Tensor]]) -> int:
    return candidate[0].count(".")


def in_words(copies: Iterable[str]) -> list[str]:
    """Return a sentence on copies by name, or none."""
    if not (names := list(copies)):
        return []
    return [
        f"does not restart {some(names, most=3)}: close to trained weights, but not trained. If this is an average of"
        " the weights, it keeps the old ones: make it an `AveragedModel` of torch, give it as averages=…, or copy the"
        " new weights to it in `sync_targets()`"
    ]


def _candidates(model: nn.Module, holders: Mapping[str, Any], targets: bool) -> Iterator[tuple[str, list[Tensor]]]:
    """Iterate over what may be a copy of weights, each with its tensors."""
    seen, (_, frozen) = {id(part) for part in model.modules()}, injected_heads(model)
    for path, part in model.named_modules():
        prefix = f"{plain(path)}." if path else ""
        if prefix.startswith(frozen):  # copies that must stay
            continue
        is_idle = all(map(_is_idle, part.parameters())) and (targets or "target" not in path)
        yield from _of_module(plain(path), part, is_idle)
        for name, value in _attributes(part).items():
            if targets or "target" not in name:
                yield from _held(f"{prefix}{name}", value, seen)
    for name, holder in holders.items():
        yield from _held(name, holder, seen, _DEPTH + 1)


def _is_idle(parameter: Tensor) -> bool:
    return bool(why_not_trained(parameter))


def _of_module(path: str, part: nn.Module, is_idle: bool) -> Iterator[tuple[str, list[Tensor]]]:
    """Yield the parameters of a module, if it is not trained, and its own buffers one by one."""
    if is_idle:
        yield path, list(part.parameters())
    for name, buffer in part.named_buffers(recurse=False):
        yield f"{path}.{name}".strip("."), [buffer]


def _held(name: str, value: Any, seen: set[int], depth: int = _DEPTH) -> Iterator[tuple[str, list[Tensor]]]:
    """Yield what an attribute holds: modules, tensors in containers, and vectors."""
    if isinstance(value, Tensor):
        if value.ndim == 1:
            yield name, [value]
        return
    if depth == 0 or id(value) in seen or len(seen) > _MOST:
        return
    if isinstance(value, nn.Module):
        seen |= {id(part) for part in value.modules()}
        for path, part in value.named_modules():
            own = f"{name}.{path}" if path else name
            yield from _of_module(own, part, not any(map(is_stepped, part.parameters())))
        return
    if not (items := _items(value)):
        return
    seen.add(id(value))
    yield name, [item for item in items.values() if isinstance(item, Tensor)]
    for key, item in items.items():
        yield from _held(f"{name}.{key}", item, seen, depth - 1)


def _items(value: Any) -> Mapping[Any, Any]:
    """Return the items of a container, or the attributes of an object that belongs to no library."""
    if isinstance(value, dict | list | tuple):
        few = value if len(value) <= _MOST else ()
        return few if isinstance(few, dict) else dict(enumerate(few))
    kinds = [kind.__module__.partition(".")[0] for kind in type(value).__mro__]
    known = kinds[0] in _LIBRARIES or "lightning_fire" in kinds or isinstance(value, Optimizer | type)
    return {} if known or not hasattr(value, "__dict__") else _attributes(value)


def _attributes(thing: Any) -> dict[str, Any]:
    """Return the attributes of an object, without those of every module and the hyperparameters of Lightning."""
    return {k: v for k, v in vars(thing).items() if k not in _OF_MODULES and not k.startswith("_hparams")}


def _trained_parts(model: nn.Module) -> tuple[_Parts, dict[int, dict[tuple[int, ...], list[Tensor]]]]:
    """Return the trained parts of a model: their matrices, by shapes, and their parameters, by the number of entries.

    A copy may hold shared parameters once or several times, and those that are not trained or not.
    """
    parts, flat = _Parts(), dict[int, dict[tuple[int, ...], list[Tensor]]]()
    for part in model.modules():
        once: list[Tensor] = list(part.parameters())
        often: list[Tensor] = [parameter for _, parameter in part.named_parameters(remove_duplicate=False)]
        for weights in (once, often, [parameter for parameter in once if not _is_idle(parameter)]):
            matrices = [weight for weight in weights if weight.ndim > 1]
            if not all(map(_is_idle, matrices)) and not any(weight.is_meta for weight in weights):
                parts.setdefault(_shapes(matrices), {})[tuple(map(id, matrices))] = matrices
                entries = sum(local(weight).numel() for weight in weights)
                flat.setdefault(entries, {})[tuple(map(id, weights))] = weights
    for weight in model.parameters():
        if weight.ndim > 1 and not (weight.is_meta or _is_idle(weight)):
            parts.setdefault(_shapes([weight]), {})[(id(weight),)] = [weight]
    return parts, flat


def _pairs(
    held: Sequence[Tensor], parts: _Parts, flat: Mapping[int, Mapping[tuple[int, ...], list[Tensor]]]
) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Yield the pairs (copy, trained matrix) of a candidate with each part of its shapes; views of a part are none."""
    if any(tensor.layout != torch.strided or tensor.is_meta for tensor in held):
        return
    if len(held) == 1 and held[0].ndim == 1:
        for weights in flat.get(local(held[0]).numel(), {}).values():
            pieces = local(held[0]).split([local(weight).numel() for weight in weights])
            yield from _apart((a.view(local(b).shape), b) for a, b in zip(pieces, weights, strict=True))
        return
    matrices = [tensor for tensor in held if tensor.ndim > 1 and tensor.is_floating_point()]
    for weights in parts.get(_shapes(matrices), {}).values() if matrices else ():
        yield from _apart(zip(matrices, weights, strict=True))


def _apart(pairs: Iterable[tuple[Tensor, Tensor]]) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Yield the pairs of trained matrices, unless the copy shares memory with one of them."""
    found = [(a, b) for a, b in pairs if b.ndim > 1 and not _is_idle(b)]
    if found and not any(local(a).data_ptr() == local(b).data_ptr() for a, b in found):
        yield found


def _shapes(tensors: Iterable[Tensor]) -> tuple[torch.Size, ...]:
    return tuple(local(tensor).shape for tensor in tensors)


def _are_near(groups: Sequence[Sequence[tuple[Tensor, Tensor]]]) -> list[bool]:
    """Return whether copies are nearer to the values of weights than to zero, for each group of pairs."""
    moves = [distance(a, b) for group in groups for a, b in group]
    norms = [torch.linalg.vector_norm(local(b).float()) for group in groups for _, b in group]
    values = read([*moves, *norms])
    moved, lengths = iter(values[: len(moves)]), iter(values[len(moves) :])
    return [sum(next(moved) for _ in group) < 0.5 * sum(next(lengths) for _ in group) for group in groups]
