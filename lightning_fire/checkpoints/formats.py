"""Open checkpoints of any known format; safetensors are read by byte ranges, and copied but for changed tensors."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightning_fire.atomic import atomic_file
from lightning_fire.checkpoints.folders import (
    INDEX_OF_PICKLES,
    SINGLE_PICKLE,
    PickledFolder,
    contents_of,
    folder_copy,
    read_index,
    require_files,
)
from lightning_fire.checkpoints.model_config import ModelConfig, config_beside
from lightning_fire.checkpoints.other_formats import require_safetensors_format
from lightning_fire.checkpoints.pickled import PickledCheckpoint
from lightning_fire.checkpoints.stored import DTYPES, Change, Stored, in_layer_order

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


class Safetensors:
    """Tensors of a `.safetensors` file, or of the files of a folder. Only headers are read until `read`."""

    keys: tuple[str, ...] = ()

    def __init__(self, path: Path, unsafe: bool = False):
        self.path, self._unsafe = path, unsafe
        folder = path if path.is_dir() else path.parent
        index = read_index(path / INDEX) if (path / INDEX).is_file() else None
        files = list(dict.fromkeys(index.values())) if index else [SINGLE if path.is_dir() else path.name]
        require_files(folder, files)
        held = {file: _read_header(folder / file) for file in files}
        file_of = index or dict.fromkeys(held[files[0]], files[0])
        if lost := [name for name, file in file_of.items() if name not in held[file]]:
            raise ValueError(f"{folder / file_of[lost[0]]} does not hold {lost[0]}, as the index says it does")
        self._places = {name: (folder / file, *held[file][name]) for name, file in file_of.items()}
        self.tensors = in_layer_order(stored for _, _, stored in self._places.values())
        kind = f"safetensors in {len(files)} file{'s' * (len(files) > 1)}" if path.is_dir() else "safetensors file"
        self.description = f"{kind}, {len(self.tensors)} tensors"
        self.emptied: Sequence[str] = ()  # files of the folder without whose optimizer states it is saved

    @property
    def config(self) -> ModelConfig:
        """Settings of the model beside the file, or in the folder."""
        return config_beside(self.path)

    def read(self, name: str) -> Tensor:
        """Read one tensor into new memory."""
        path, start, stored = self._places[name]
        if stored.dtype not in DTYPES:
            raise ValueError(f"{name} is of type {stored.dtype}, which cannot be read here")
        tensor = torch.empty(stored.shape, dtype=DTYPES[stored.dtype])
        with path.open("rb") as file:
            file.seek(start)
            if file.readinto(_bytes_of(tensor)) != tensor.nbytes:
                raise OSError(f"{path} ends within {name}")
        return tensor

    def save(self, output: Path, names: Sequence[str], change: Change) -> None:
        """Write a copy with some tensors changed, one at a time. All other bytes and files are copied."""
        if not self.path.is_dir():
            with atomic_file(output) as part:
                shutil.copy(self.path, part)  # with its mode
                self._overwrite(part, names, change)
            return
        with folder_copy(self.path, output, self.emptied, self._unsafe) as part:
            self._overwrite(part, names, change)

    def _overwrite(self, copy: Path, names: Sequence[str], change: Change) -> None:
        for name in names:
            path, start, _ = self._places[name]
            tensor = self.read(name)
            change(name, tensor)
            with (copy / path.name if copy.is_dir() else copy).open("r+b") as file:
                file.seek(start)
                file.write(_bytes_of(tensor))


Checkpoint = Safetensors | PickledCheckpoint | PickledFolder


def open_checkpoint(path: Path, unsafe_pickle: bool = False, keys: Sequence[str] = ()) -> Checkpoint:
    """Open a checkpoint of any known format.

    Args:
        path: A `.safetensors` file; a folder with `model.safetensors` or `pytorch_model.bin`, whole or with an index,
            or that index; or a file of `torch.save`: a Lightning checkpoint, a state dict, or some under keys.
        unsafe_pickle: Whether to unpickle any Python object, which runs any code in the file.
        keys: Keys of the networks to take from a file of `torch.save` that holds several.

    Returns:
        The checkpoint, with `path`, `tensors`, `config`, `description`, `keys`, `read` and `save`. No values are read
        yet.

    Raises:
        ValueError: If it is corrupt, of an unknown format, or holds several networks without a choice by `keys`.
        OSError: If it does not exist, or cannot be read.
        ImportError: If it needs safetensors, which is not installed.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    if path.name in (INDEX, INDEX_OF_PICKLES):
        kind = Safetensors if path.name == INDEX else PickledFolder
        return kind(path.parent, unsafe_pickle)
    if path.is_dir():
        if any((path / name).is_file() for name in (INDEX, SINGLE)):
            return Safetensors(path, unsafe_pickle)
        if any((path / name).is_file() for name in (INDEX_OF_PICKLES, SINGLE_PICKLE)):
            return PickledFolder(path, unsafe_pickle)
        raise ValueError(f"{path} {contents_of(path)}")
    if path.suffix == ".safetensors":
        return Safetensors(path)
    return PickledCheckpoint(path, unsafe_pickle, keys)


def _read_header(path: Path) -> dict[str, tuple[int, Stored]]:
    """Check that a safetensors file is complete; return the offset and the description of each tensor."""
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise ImportError(f"{path} needs safetensors: pip install 'lightning-fire[safetensors]'") from error
    require_safetensors_format(path)
    try:
        with safe_open(path, framework="pt"):
            pass
    except SafetensorError as error:
        raise ValueError(f"{path} is not a complete safetensors file: {error}") from None
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        start = file.tell()  # from where offsets count
    header.pop("__metadata__", None)
    stored = {name: Stored(name, tuple(entry["shape"]), entry["dtype"]) for name, entry in header.items()}
    return {name: (start + entry["data_offsets"][0], stored[name]) for name, entry in header.items()}


def _bytes_of(tensor: Tensor) -> Any:
    """Return the bytes of a contiguous tensor as an array that shares its memory."""
    return tensor.reshape(-1).view(torch.uint8).numpy()
