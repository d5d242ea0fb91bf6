"""Description of a tensor in a file, without its values."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Parameter

from lightning_fire.where.memory import Place, overlapping, place_of

FLOATING = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
COUNTING = {"I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8}
DTYPES = {**FLOATING, **COUNTING, "BOOL": torch.bool}
_WORDS = {dtype: word for word, dtype in DTYPES.items()}

Edit = Callable[[str, Tensor], None]
"""Function of the name of a tensor and the tensor as stored, which it changes in place."""


@dataclass(frozen=True)
class Stored:
    """Description of a tensor in a file.

    Attributes:
        name: Its name in the file.
        shape: Its shape, as stored.
        dtype: Its type in the words of safetensors, such as `BF16`; some have no counterpart in torch.
        aliases: Other names of the same values: tied weights.
        reason: Reason that its values cannot be replaced; empty if they can.
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


def in_layer_order(tensors: Iterable[Stored]) -> list[Stored]:
    """Sort tensors by name, with numbers in numerical order: safetensors files sort them as text.

    Example:
        >>> [stored.name for stored in in_layer_order(Stored(f"h.{layer}.weight", (), "F32") for layer in (1, 10, 2))]
        ['h.1.weight', 'h.2.weight', 'h.10.weight']
    """
    # text and numbers alternate, text first
    split = re.compile(r"(\d+)").split
    return sorted(tensors, key=lambda stored: [int(p) if p.isdecimal() else p for p in split(stored.name)])


def stored_tensors(state: Mapping[str, Tensor]) -> list[Stored]:
    """Describe tensors by name, those of the same memory as one; partly overlapping ones cannot be replaced."""
    names: dict[Place | str, list[str]] = {}
    for name, tensor in state.items():
        names.setdefault(place_of(tensor) or name, []).append(name)
    tangled = overlapping({group[0]: place for place, group in names.items() if isinstance(place, Place)})
    return [_describe(state[name], name, aliases, tangled.get(name, "")) for name, *aliases in names.values()]


def _describe(tensor: Tensor, name: str, aliases: Sequence[str], tangled: str) -> Stored:
    word = _WORDS.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))
    reason = f"sharing memory with {tangled}" if tangled else ""
    if type(tensor) not in (Tensor, Parameter) or tensor.layout != torch.strided or tensor.is_quantized:
        reason = "not an ordinary dense tensor"
    elif any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)):
        reason = "expanded from fewer values"
    return Stored(name, tuple(tensor.shape), word, tuple(aliases), reason)
