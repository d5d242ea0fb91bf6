"""Tensors that overlap in memory."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter


class MemoryRange(NamedTuple):
    """Memory range of a tensor, and its layout there."""

    first: int
    end: int
    layout: tuple[torch.dtype, torch.Size, tuple[int, ...]]


def range_of(tensor: Tensor) -> MemoryRange | None:
    """Return the memory range of a tensor; None if it is empty or not an ordinary tensor on a CPU or CUDA device."""
    ordinary = type(tensor) in (Tensor, Parameter) and tensor.layout == torch.strided
    if not ordinary or tensor.device.type not in ("cpu", "cuda") or not tensor.numel():
        return None
    steps = sum(stride * (size - 1) for stride, size in zip(tensor.stride(), tensor.shape, strict=True))
    first = tensor.data_ptr()
    return MemoryRange(
        first, first + (steps + 1) * tensor.element_size(), (tensor.dtype, tensor.shape, tensor.stride())
    )


def overlapping(ranges: Mapping[str, MemoryRange]) -> dict[str, str]:
    """Map the name of each tensor that overlaps another one to the name of such a tensor."""
    found: dict[str, str] = {}
    widest = ""  # of the tensors that start before, the one that ends last
    for name, own in sorted(ranges.items(), key=lambda item: item[1].first):
        if widest and own.first < ranges[widest].end:
            found[name] = widest
            found.setdefault(widest, name)
        if not widest or own.end > ranges[widest].end:
            widest = name
    return found
