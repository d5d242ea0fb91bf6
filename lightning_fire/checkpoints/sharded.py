"""A folder of safetensors files, as Hugging Face writes models."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from lightning_fire.checkpoints.atomic import atomic_folder
from lightning_fire.checkpoints.safetensors_file import SafetensorsFile
from lightning_fire.checkpoints.stored import Change, in_layer_order

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
