"""Tensors that share memory: tied weights, and others."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from lightning_fire.checkpoints.stored import DTYPES, Stored

_WORDS = {dtype: word for word, dtype in DTYPES.items()}


class _Place(NamedTuple):
    """Which bytes of which storage a tensor covers, and how."""

    storage: int
    first: int
    end: int
    layout: tuple


def stored_tensors(state: Mapping[str, Tensor]) -> list[Stored]:
    """Describe tensors by name, those of the same memory as one.

    Args:
        state: The tensors; other values must not be in it.

    Returns:
        In the same order. What overlaps another tensor without being the same has an reason: to change one would
        change the other.

    Example:
        >>> table = torch.zeros(5, 2)
        >>> stored_tensors({"wte.weight": table, "head.weight": table})
        [Stored(name='wte.weight', shape=(5, 2), dtype='F32', aliases=('head.weight',), reason='')]
    """
    names: dict[object, list[str]] = {}
    places: dict[str, _Place] = {}
    for name, tensor in state.items():
        place = _place(tensor)
        names.setdefault(place or name, []).append(name)  # what has no memory of its own is tied with nothing
        if place:
            places[name] = place
    tangled = _overlapping({names[place][0]: place for place in dict.fromkeys(places.values())})
    return [_describe(state[group[0]], group, tangled.get(group[0], "")) for group in names.values()]


def _describe(tensor: Tensor, names: list[str], tangled: str) -> Stored:
    name, *aliases = names
    word = _WORDS.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))
    reason = f"sharing memory with {tangled}" if tangled else ""
    if type(tensor) not in (Tensor, Parameter) or tensor.layout != torch.strided or tensor.is_quantized:
        reason = "not an ordinary dense tensor"
    elif any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)):
        reason = "expanded from fewer values"
    return Stored(name, tuple(tensor.shape), word, tuple(aliases), reason)


def _place(tensor: Tensor) -> _Place | None:
    if tensor.layout != torch.strided or tensor.device.type == "meta" or not tensor.numel():
        return None
    steps = sum(stride * (size - 1) for stride, size in zip(tensor.stride(), tensor.shape, strict=True))
    first = tensor.data_ptr()
    end = first + (steps + 1) * tensor.element_size()
    return _Place(tensor.untyped_storage().data_ptr(), first, end, (tensor.dtype, tensor.shape, tensor.stride()))


def _overlapping(places: Mapping[str, _Place]) -> dict[str, str]:
    """Return for each tensor that overlaps another one of those others."""
    found: dict[str, str] = {}
    widest = ""  # of those that begin before, the one that ends last
    for name, place in sorted(places.items(), key=lambda item: item[1].first):
        if widest and place.first < places[widest].end:
            found[name] = widest
            found.setdefault(widest, name)
        if not widest or place.end > places[widest].end:
            widest = name
    return found
