"""Open checkpoints of any known format; safetensors are read by byte ranges, and copied but for changed tensors."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightning_fire.checkpoints.atomic import atomic_file, atomic_folder
from lightning_fire.checkpoints.model_config import config_beside
from lightning_fire.checkpoints.pickled import PickledCheckpoint
from lightning_fire.checkpoints.stored import DTYPES, Change, Stored, in_layer_order

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


class Safetensors:
    """Tensors of a `.safetensors` file, or of the files of a folder. Only headers are read until `read`."""

    def __init__(self, path: Path):
        self.path = path
        folder, index = (path, _read_index(path)) if path.is_dir() else (path.parent, None)
        files = list(dict.fromkeys(index.values())) if index else [SINGLE if path.is_dir() else path.name]
        if missing := [file for file in files if not (folder / file).is_file()]:
            raise FileNotFoundError(f"{folder} lacks {', '.join(missing)}, which its index names")
        held = {file: _read_header(folder / file) for file in files}
        file_of = index or dict.fromkeys(held[files[0]], files[0])
        if lost := [name for name, file in file_of.items() if name not in held[file]]:
            raise ValueError(f"{folder / file_of[lost[0]]} does not hold {lost[0]}, as the index says it does")
        self._places = {name: (folder / file, *held[file][name]) for name, file in file_of.items()}
        self.tensors = in_layer_order(stored for _, _, stored in self._places.values())
        kind = f"safetensors in {len(files)} file{'s' * (len(files) > 1)}" if path.is_dir() else "safetensors file"
        self.description = f"{kind}, {len(self.tensors)} tensors"
        self.config = config_beside(path)

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
        here, there = self.path.resolve(), output.resolve()
        if here != there and (here in there.parents or there in here.parents):
            raise ValueError(f"{output} and {self.path} must not lie in each other")
        with atomic_folder(output) as part:
            shutil.copytree(self.path, part)  # links are followed: a model in Hugging Face's cache consists of them
            self._overwrite(part, names, change)

    def _overwrite(self, copy: Path, names: Sequence[str], change: Change) -> None:
        for name in names:
            path, start, _ = self._places[name]
            tensor = self.read(name)
            change(name, tensor)
            with (copy / path.name if copy.is_dir() else copy).open("r+b") as file:
                file.seek(start)
                file.write(_bytes_of(tensor))


Checkpoint = Safetensors | PickledCheckpoint


def open_checkpoint(path: Path, unsafe_pickle: bool = False) -> Checkpoint:
    """Open a checkpoint of any known format.

    Args:
        path: A `.safetensors` file; a folder with `model.safetensors` or `model.safetensors.index.json`, or that
            index; or a file of `torch.save`: a Lightning checkpoint, a state dict, or one under `state_dict` or
            `model`.
        unsafe_pickle: Whether to unpickle any Python object, which runs any code in the file.

    Returns:
        The checkpoint, with `path`, `tensors`, `config`, `description`, `read` and `save`. No values are read yet.

    Raises:
        ValueError: If it is corrupt, or of an unknown format.
        OSError: If it does not exist, or cannot be read.
        ImportError: If it needs safetensors, which is not installed.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    if path.name == INDEX:
        path = path.parent
    if path.is_dir() or path.suffix == ".safetensors":
        return Safetensors(path)
    return PickledCheckpoint(path, unsafe_pickle)


def _read_header(path: Path) -> dict[str, tuple[int, Stored]]:
    """Check that a safetensors file is complete; return the offset and the description of each tensor."""
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
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        start = file.tell()  # from where offsets count
    header.pop("__metadata__", None)
    stored = {name: Stored(name, tuple(entry["shape"]), entry["dtype"]) for name, entry in header.items()}
    return {name: (start + entry["data_offsets"][0], stored[name]) for name, entry in header.items()}


def _bytes_of(tensor: Tensor) -> Any:
    """Return the bytes of a contiguous tensor as an array that shares its memory."""
    return tensor.reshape(-1).view(torch.uint8).numpy()


def _read_index(folder: Path) -> dict[str, str] | None:
    """Return the file of a folder that holds each tensor; None if it has one file and no index."""
    path = folder / INDEX
    if not path.is_file():
        if not (folder / SINGLE).is_file():
            others = sorted(folder.glob("*.safetensors"))
            hint = f": name a file, such as {others[0]}" if others else ""
            raise ValueError(f"{folder} is a folder without {SINGLE} and {INDEX}{hint}")
        return None
    try:
        files = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        outside = [file for file in files.values() if Path(file).name != file or file == ".."]
    except (ValueError, KeyError, TypeError, AttributeError) as error:  # of JSON, of UTF-8, of other content
        raise ValueError(f"{path} is not an index, a `weight_map` from tensors to files: {error!r}") from None
    if outside:
        raise ValueError(f"{path} names {outside[0]!r}, which is not a file of its folder")
    return files
