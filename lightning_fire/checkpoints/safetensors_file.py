"""Safetensors files: tensors are read one at a time; all bytes except those of changed tensors are copied."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from lightning_fire.atomic import atomic_file
from lightning_fire.checkpoints.other_formats import require_format
from lightning_fire.checkpoints.stored import DTYPES, Checkpoint, Edit, Stored, in_layer_order


class Safetensors(Checkpoint):
    """Tensors of a `.safetensors` file. Only its header is read until `read`."""

    single = "model.safetensors"  # name of the file in a folder

    def __init__(self, path: Path, unsafe: bool = False):
        self.path = path
        self._places = _read_header(path)
        self.tensors = in_layer_order(stored for _, stored in self._places.values())
        self.description = f"safetensors file, {len(self.tensors)} tensors"

    def read(self, name: str) -> Tensor:
        """Read one tensor."""
        from safetensors import safe_open

        if (dtype := self._places[name][1].dtype) not in DTYPES:
            raise ValueError(f"{name} is of type {dtype}, which cannot be read here")
        with safe_open(self.path, framework="pt") as file:
            tensor: Tensor = file.get_tensor(name)
        return tensor

    def save(self, output: Path, names: Sequence[str], change: Edit) -> None:
        """Write a copy with some tensors changed, one at a time. All other bytes are copied."""
        with atomic_file(output) as part:
            shutil.copy(self.path, part)  # with its mode
            with part.open("r+b") as file:
                for name in names:
                    tensor = self.read(name)
                    change(name, tensor)
                    file.seek(self._places[name][0])
                    file.write(tensor.reshape(-1).view(torch.uint8).numpy().data)


def _read_header(path: Path) -> dict[str, tuple[int, Stored]]:
    """Check that a file is complete; return the position of the first byte of each tensor, and its description."""
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise ImportError(f"{path} needs safetensors: pip install 'lightning-fire[safetensors]'") from error
    require_format(path, safetensors=True)
    try:
        with safe_open(path, framework="pt"):
            pass
    except SafetensorError as error:
        raise ValueError(f"{path} is not a complete safetensors file: {error}") from None
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        start = file.tell()  # origin of offsets
    header.pop("__metadata__", None)
    stored = {name: Stored(name, tuple(entry["shape"]), entry["dtype"]) for name, entry in header.items()}
    return {name: (start + entry["data_offsets"][0], stored[name]) for name, entry in header.items()}
