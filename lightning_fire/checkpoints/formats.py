"""Open checkpoints of any known format; safetensors are read by byte ranges, and copied but for changed tensors."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightning_fire.checkpoints.atomic import atomic_file, atomic_folder
from lightning_fire.checkpoints.pickled import PickledCheckpoint
from lightning_fire.checkpoints.stored import DTYPES, Change, Stored, in_layer_order

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


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
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
            start = file.tell()  # from where offsets count
        header.pop("__metadata__", None)
        self._starts = {name: start + entry["data_offsets"][0] for name, entry in header.items()}
        self.stored = {name: Stored(name, tuple(entry["shape"]), entry["dtype"]) for name, entry in header.items()}
        self.tensors = in_layer_order(self.stored.values())
        self.description = f"safetensors file, {len(self.tensors)} tensors"

    def read(self, name: str) -> Tensor:
        """Read one tensor into memory of its own."""
        stored = self.stored[name]
        if stored.dtype not in DTYPES:
            raise ValueError(f"{name} is of type {stored.dtype}, which cannot be read here")
        tensor = torch.empty(stored.shape, dtype=DTYPES[stored.dtype])
        with self.path.open("rb") as file:
            file.seek(self._starts[name])
            if file.readinto(_bytes_of(tensor)) != tensor.nbytes:
                raise OSError(f"{self.path} ends within {name}")
        return tensor

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
                tensor = self.read(name)
                change(name, tensor)
                file.seek(self._starts[name])
                file.write(_bytes_of(tensor))


class ShardedSafetensors:
    """The tensors of all files that the index of a folder names, or of its `model.safetensors` if it has no index.

    Attributes:
        path: The folder.
        tensors: What the files hold, in the order of layers.
        description: Its kind and number of tensors, for messages.
    """

    def __init__(self, folder: Path):
        self.path = folder
        index = _read_index(folder / INDEX) if (folder / INDEX).is_file() else None
        names = [SINGLE] if index is None else list(dict.fromkeys(index.values()))
        if missing := [name for name in names if not (folder / name).is_file()]:
            raise FileNotFoundError(f"{folder} lacks {', '.join(missing)}, which its index names")
        self._shards = {name: SafetensorsFile(folder / name) for name in names}
        self._file_of = index or dict.fromkeys(self._shards[SINGLE].stored, SINGLE)
        if lost := [name for name, file in self._file_of.items() if name not in self._shards[file].stored]:
            raise ValueError(f"{folder / self._file_of[lost[0]]} does not hold {lost[0]}, as the index says it does")
        self.tensors = in_layer_order(self._shards[file].stored[name] for name, file in self._file_of.items())
        self.description = f"safetensors in {len(names)} file{'s' * (len(names) > 1)}, {len(self.tensors)} tensors"

    def read(self, name: str) -> Tensor:
        """Read one tensor into memory of its own."""
        return self._shards[self._file_of[name]].read(name)

    def save(self, output: Path, names: Sequence[str], change: Change) -> None:
        """Write a copy of the folder, with its other files, and with some tensors changed."""
        here, there = self.path.resolve(), output.resolve()
        if here != there and (here in there.parents or there in here.parents):
            raise ValueError(f"{output} and {self.path} must not lie in each other")
        if links := [file for file in self.path.rglob("*") if file.is_symlink() and file.is_dir()]:
            raise ValueError(f"{links[0]} is a link to a folder, of which no copy can be made")
        with atomic_folder(output) as part:
            shutil.copytree(self.path, part)  # links are followed: a model in Hugging Face's cache consists of them
            for file, shard in self._shards.items():
                shard.overwrite(part / file, [name for name in names if self._file_of[name] == file], change)


Checkpoint = SafetensorsFile | ShardedSafetensors | PickledCheckpoint


def open_checkpoint(path: Path, unsafe_pickle: bool = False) -> Checkpoint:
    """Open a checkpoint of any known format.

    Args:
        path: A `.safetensors` file; a folder with `model.safetensors` or `model.safetensors.index.json`, or that
            index; or a file of `torch.save`: a Lightning checkpoint, a state dict, or one under `state_dict` or
            `model`.
        unsafe_pickle: Whether to unpickle any Python object, which runs any code in the file.

    Returns:
        The checkpoint, with `tensors`, `read` and `save`. No values have been read yet.

    Raises:
        ValueError: If it is broken, or of an unknown format.
        OSError: If it does not exist, or cannot be read.
        ImportError: If it needs safetensors, which is not installed.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    if path.name == INDEX:
        path = path.parent
    if path.is_dir():
        if not any((path / name).is_file() for name in (INDEX, SINGLE)):
            files = sorted(path.glob("*.safetensors"))
            hint = f": name a file, such as {files[0]}" if files else ""
            raise ValueError(f"{path} is a folder without {SINGLE} and {INDEX}{hint}")
        return ShardedSafetensors(path)
    return SafetensorsFile(path) if path.suffix == ".safetensors" else PickledCheckpoint(path, unsafe_pickle)


def _validate(path: Path) -> None:
    """Raise an error unless a file is a complete safetensors file."""
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


def _bytes_of(tensor: Tensor) -> Any:
    """Return the bytes of a contiguous tensor as an array that shares its memory."""
    return tensor.reshape(-1).view(torch.uint8).numpy()


def _read_index(path: Path) -> dict[str, str]:
    """Return which file of the folder holds each tensor."""
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # of JSON, of UTF-8
        raise ValueError(f"{path} is not an index: {error}") from None
    files = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(files, dict) or not files or not all(isinstance(file, str) for file in files.values()):
        raise ValueError(f"{path} is not an index: it has no `weight_map` from tensors to files")
    for file in files.values():
        if Path(file).name != file or file == "..":
            raise ValueError(f"{path} names {file!r}, which is not a file of its folder")
    return files
