"""Copies of weights that optimizers keep, such as float32 master weights."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_fire.distributed import local
from lightning_fire.methods.base.optimizers import Optimizers, listed, parameters_of, stepped_by, with_inner
from lightning_fire.methods.base.transfers import read

_DEPTH = 6  # of containers and objects in an optimizer


@torch.no_grad()
def copies_in(optimizers: Optimizers, weights: Iterable[Tensor]) -> dict[Tensor, list[Tensor]]:
    """Find copies of weights that optimizers step, such as float32 master weights: same shape, equal after rounding.

    Everything that the optimizers hold is searched, except their `state`. Copies of a weight that an optimizer steps
    are searched in that optimizer only, and not among its parameters: other equal tensors belong to another model, such
    as another member of an ensemble. Copies of other weights must have a higher precision. Copies of weights with equal
    values are assigned in order.

    Args:
        optimizers: One or several.
        weights: All parameters of a model.

    Returns:
        The copies by weight, for weights that have some.
    """
    given, own = listed(optimizers), list(dict.fromkeys(weights))
    known = {id(weight) for weight in own}
    found: list[tuple[Tensor, set[Tensor]]] = []  # each with what its optimizer steps
    for optimizer in given:
        new = {id(tensor): tensor for tensor in _tensors(optimizer, set(), _DEPTH) if id(tensor) not in known}
        found += [(tensor, parameters_of(optimizer)) for tensor in new.values()]
        known |= new.keys()
    held, beside = parameters_of(given), [stepped_by(optimizer) for optimizer in with_inner(given)]
    pairs = [
        (weight, tensor)
        for weight in own
        for tensor, stepped_there in found
        if tensor.shape == weight.shape
        and tensor.is_floating_point()
        and not (tensor.is_meta or weight.is_meta)
        and local(tensor).shape == local(weight).shape
        and (
            weight in stepped_there
            or (weight not in held and torch.finfo(tensor.dtype).eps < torch.finfo(weight.dtype).eps)
        )
        and not any(weight in stepped and tensor in stepped for stepped in beside)
    ]
    if not pairs:
        return {}
    flags = [(local(tensor).to(weight.device, weight.dtype) == local(weight)).all() for weight, tensor in pairs]
    equal = defaultdict[tuple[int, ...], list[Tensor]](list)  # weights by the tensors that equal them
    copies = defaultdict[Tensor, list[Tensor]](list)
    for (weight, tensor), is_equal in zip(pairs, read(flags), strict=True):
        if is_equal:
            copies[weight].append(tensor)
    for weight, tensors in copies.items():
        equal[tuple(map(id, tensors))].append(weight)
    return {
        weight: copies[weight][number :: len(alike)] for alike in equal.values() for number, weight in enumerate(alike)
    }


def _tensors(value: Any, seen: set[int], depth: int) -> Iterator[Tensor]:
    """Iterate over the tensors that an optimizer, a container or a plain object holds."""
    if id(value) in seen or depth < 0:
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping | list | tuple | set):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(item, seen, depth - 1)
    elif hasattr(value, "__dict__") and not callable(value) and not isinstance(value, nn.Module | type):
        for name, item in vars(value).items():
            if not (name == "state" and hasattr(value, "param_groups")):
                yield from _tensors(item, seen, depth - (1 if isinstance(value, Optimizer) else 2))
