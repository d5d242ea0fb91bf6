"""A safetensors file, read by byte ranges and changed in a copy: all other bytes stay."""

import json
import shutil
from collections.abc import Sequence
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from lightning_fire.checkpoints.atomic import atomic_file
from lightning_fire.checkpoints.stored import DTYPES, Change, Stored, in_layer_order

_LENGTH = 8  # bytes that hold the length of the header


class SafetensorsFile:
    """The tensors of a `.safetensors` file. Only its header is read until a tensor is asked for.

    Attributes:
        tensors: What it holds, in the order of layers.
        description: Its kind and number of tensors, for messages.
    """

    def __init__(self, path: Path):
        self.path = path
        _validate(path)
        with path.open("rb") as file:
            length = int.from_bytes(file.read(_LENGTH), "little")
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        start = _LENGTH + length  # from where offsets count
        self._ranges = {name: [start + offset for offset in entry["data_offsets"]] for name, entry in header.items()}
        tensors = (Stored(name, tuple(entry["shape"]), entry["dtype"]) for name, entry in header.items())
        self.tensors = in_layer_order(tensors)
        self._stored = {stored.name: stored for stored in self.tensors}
        self.description = f"safetensors file, {len(self.tensors)} tensors"

    def read(self, name: str) -> Tensor:
        """Read one tensor into memory of its own."""
        return self._read(name)[0]

    def _read(self, name: str) -> tuple[Tensor, bytearray]:
        """Return a tensor, and its bytes, which it shares."""
        stored, (first, end) = self._stored[name], self._ranges[name]
        if stored.dtype not in DTYPES:
            raise ValueError(f"{name} is of type {stored.dtype}, which cannot be read here")
        content = bytearray(end - first)
        with self.path.open("rb") as file:
            file.seek(first)
            if file.readinto(content) != len(content):
                raise OSError(f"{self.path} ends within {name}")
        if not prod(stored.shape):
            return torch.empty(stored.shape, dtype=DTYPES[stored.dtype]), content
        return torch.frombuffer(content, dtype=DTYPES[stored.dtype]).view(stored.shape), content

    def save(self, output: Path, names: Sequence[str], change: Change) -> None:
        """Write a copy with some tensors changed, one at a time. Every other byte is that of this file."""
        with atomic_file(output) as part:
            shutil.copyfile(self.path, part)
            shutil.copymode(self.path, part)
            self.overwrite(part, names, change)

    def overwrite(self, copy: Path, names: Sequence[str], change: Change) -> None:
        """Change tensors in a copy of this file that is not in use yet."""
        with copy.open("r+b") as file:
            for name in names:
                tensor, content = self._read(name)
                change(name, tensor)
                file.seek(self._ranges[name][0])
                file.write(content)


def _validate(path: Path) -> None:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise ImportError(f"{path} needs safetensors: pip install 'lightning-fire[safetensors]'") from error
    with path.open("rb") as file:
        if file.read(24) == b"version https://git-lfs.":
            raise ValueError(f"{path} is a pointer of Git LFS instead of the weights: git lfs pull fetches them")
    try:
        with safe_open(path, framework="pt"):
            pass
    except SafetensorError as error:
        raise ValueError(f"{path} is not a complete safetensors file: {error}") from None
