"""Read and write checkpoints of any known format."""

import json
import shutil
from collections.abc import Sequence
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from lightning_fire.checkpoints.atomic import atomic_file, atomic_folder
from lightning_fire.checkpoints.pickled import PickledCheckpoint
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


INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


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
        held = {name: {stored.name: stored for stored in shard.tensors} for name, shard in self._shards.items()}
        self._file_of = index or {name: SINGLE for name in held[SINGLE]}
        if lost := [name for name, file in self._file_of.items() if name not in held[file]]:
            raise ValueError(f"{folder / self._file_of[lost[0]]} does not hold {lost[0]}, as the index says it does")
        self.tensors = in_layer_order(held[file][name] for name, file in self._file_of.items())
        self.description = f"safetensors in {len(names)} file{'s' * (len(names) > 1)}, {len(self.tensors)} tensors"

    def read(self, name: str) -> Tensor:
        """Read one tensor, see `SafetensorsFile.read`."""
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


def _read_index(path: Path) -> dict[str, str]:
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
