"""Tensors that share memory: tied weights, and others."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import Parameter

from lightning_fire.checkpoints.stored import DTYPES, Stored
from lightning_fire.where.memory import Place, overlapping, place_of

_WORDS = {dtype: word for word, dtype in DTYPES.items()}


def stored_tensors(state: Mapping[str, Tensor]) -> list[Stored]:
    """Describe tensors by name, those of the same memory as one.

    One that overlaps another without being the same cannot be replaced: that would change both.
    """
    names: dict[object, list[str]] = {}
    places: dict[str, Place] = {}
    for name, tensor in state.items():
        place = place_of(tensor)
        names.setdefault(place or name, []).append(name)  # what has no memory of its own is tied with nothing
        if place:
            places[name] = place
    tangled = overlapping({names[place][0]: place for place in dict.fromkeys(places.values())})
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
