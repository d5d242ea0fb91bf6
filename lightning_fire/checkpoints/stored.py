"""Checkpoints, and descriptions of their tensors without values."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from lightning_fire.checkpoints.memory import MemoryRange, overlapping, range_of
from lightning_fire.checkpoints.model_config import ModelConfig, config_beside

FLOATING = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
COUNTING = {"I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8}
DTYPES = {**FLOATING, **COUNTING, "BOOL": torch.bool}
_WORDS = {dtype: word for word, dtype in DTYPES.items()}

Edit = Callable[[str, Tensor], None]
"""Function of the name of a tensor and the stored tensor, which it changes in place."""


@dataclass(frozen=True)
class Stored:
    """Description of a tensor in a file.

    Attributes:
        name: Its name in the file.
        shape: Its shape, as stored.
        dtype: Its type as named by safetensors, such as `BF16`; some have no counterpart in torch.
        aliases: Other names of the same values: tied weights.
        reason: Reason why its values cannot be replaced; empty if they can.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    aliases: tuple[str, ...] = ()
    reason: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """All its names."""
        return (self.name, *self.aliases)


class Checkpoint(ABC):
    """Tensors of a file or a folder, described in `tensors`; no values are read before `read`."""

    path: Path
    tensors: list[Stored]
    description: str
    keys: tuple[str, ...] = ()  # keys of the used networks

    @property
    def config(self) -> ModelConfig:
        """Settings of the model, in the folder."""
        return config_beside(self.path)

    @abstractmethod
    def read(self, name: str) -> Tensor:
        """Return one tensor."""

    @abstractmethod
    def save(self, output: Path, names: Sequence[str], change: Edit) -> None:
        """Write a copy with some tensors changed, and everything else kept."""

    def notes(self) -> list[str]:
        """Return notes on other content of the file or folder, which is not changed."""
        return []

    def optimizer_states(self) -> list[dict[str, Any]]:
        """Return the optimizer states in the file, under any key."""
        return []


def in_layer_order(tensors: Iterable[Stored]) -> list[Stored]:
    """Sort tensors by name, with numbers in numerical order: safetensors files sort them as text."""
    split = re.compile(r"(\d+)").split  # text and numbers alternate, text first
    return sorted(tensors, key=lambda stored: [int(p) if p.isdecimal() else p for p in split(stored.name)])


def stored_tensors(state: Mapping[str, Tensor]) -> list[Stored]:
    """Describe tensors by name, those with the same memory once; partly overlapping ones cannot be replaced."""
    names: dict[MemoryRange | str, list[str]] = {}
    for name, tensor in state.items():
        names.setdefault(range_of(tensor) or name, []).append(name)
    tangled = overlapping({group[0]: own for own, group in names.items() if isinstance(own, MemoryRange)})
    return [_describe(state[name], name, aliases, tangled.get(name, "")) for name, *aliases in names.values()]


def _describe(tensor: Tensor, name: str, aliases: Sequence[str], tangled: str) -> Stored:
    word = _WORDS.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))
    reason = f"sharing memory with {tangled}" if tangled else ""
    if type(tensor) not in (Tensor, Parameter) or tensor.layout != torch.strided or tensor.is_quantized:
        reason = "not an ordinary dense tensor"
    elif any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)):
        reason = "expanded from fewer values"
    return Stored(name, tuple(tensor.shape), word, tuple(aliases), reason)
