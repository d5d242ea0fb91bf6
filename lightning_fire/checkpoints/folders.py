"""Folders of checkpoint files: copies of them, shards of `torch.save`, and hints on what else a folder holds."""

import json
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

from lightning_fire.atomic import atomic_folder
from lightning_fire.checkpoints.model_config import ModelConfig, config_beside
from lightning_fire.checkpoints.optimizer_states import empty
from lightning_fire.checkpoints.pickled import PickledCheckpoint
from lightning_fire.checkpoints.stored import Change

INDEX_OF_PICKLES = "pytorch_model.bin.index.json"
SINGLE_PICKLE = "pytorch_model.bin"
_ENDINGS = ("*.safetensors", "*.ckpt", "*.pt", "*.pth", "*.bin")


class PickledFolder:
    """Tensors of files of `torch.save` in a folder: `pytorch_model.bin`, or those that its index names."""

    keys: tuple[str, ...] = ()

    def __init__(self, path: Path, unsafe: bool = False):
        self.path, self._unsafe = path, unsafe
        index = read_index(path / INDEX_OF_PICKLES) if (path / INDEX_OF_PICKLES).is_file() else None
        files = list(dict.fromkeys(index.values())) if index else [SINGLE_PICKLE]
        require_files(path, files)
        shards = [PickledCheckpoint(path / file, unsafe) for file in files]
        self._shard_of = {name: shard for shard in shards for stored in shard.tensors for name in stored.names}
        if lost := [name for name in index or () if name not in self._shard_of]:
            raise ValueError(f"{path} does not hold {lost[0]}, as its index says it does")
        self.tensors = [stored for shard in shards for stored in shard.tensors]
        self.description = f"torch.save in {len(files)} file{'s' * (len(files) > 1)}, {len(self.tensors)} tensors"
        self.emptied: Sequence[str] = ()

    @property
    def config(self) -> ModelConfig:
        """Settings of the model in the folder."""
        return config_beside(self.path)

    def read(self, name: str) -> Tensor:
        """Return one tensor."""
        return self._shard_of[name].read(name)

    def save(self, output: Path, names: Sequence[str], change: Change) -> None:
        """Write a copy of the folder with some tensors changed, one file at a time."""
        with folder_copy(self.path, output, self.emptied, self._unsafe) as part:
            for shard in dict.fromkeys(self._shard_of[name] for name in names):
                of_shard = [name for name in names if self._shard_of[name] is shard]
                shard.save(part / shard.path.name, of_shard, change)


@contextmanager
def folder_copy(folder: Path, output: Path, emptied: Sequence[str], unsafe: bool) -> Iterator[Path]:
    """Context manager: copy a folder, to be changed, and rename the copy to `output` at the end.

    Args:
        folder: The folder; links in it are followed, as a model in Hugging Face's cache consists of them.
        output: Its copy.
        emptied: Names of files in it whose optimizer states are emptied.
        unsafe: Whether to unpickle any Python object in these.
    """
    here, there = folder.resolve(), output.resolve()
    if here != there and (here in there.parents or there in here.parents):
        raise ValueError(f"{output} and {folder} must not lie in each other")
    with atomic_folder(output) as part:
        shutil.copytree(folder, part)
        for name in emptied:
            empty(part / name, unsafe)
        yield part


def read_index(path: Path) -> dict[str, str]:
    """Return the file of a folder that holds each tensor, from the index of the folder."""
    try:
        files = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        outside = [file for file in files.values() if Path(file).name != file or file == ".."]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:  # of JSON, UTF-8, other content
        raise ValueError(f"{path} is not an index, a `weight_map` from tensors to files: {error!r}") from None
    if outside:
        raise ValueError(f"{path} names {outside[0]!r}, which is not a file of its folder")
    return dict(files)


def require_files(folder: Path, files: Sequence[str]) -> None:
    """Raise an error if a folder lacks files of its index."""
    if missing := [file for file in files if not (folder / file).is_file()]:
        raise FileNotFoundError(f"{folder} lacks {', '.join(missing)}, which its index names")


def contents_of(folder: Path) -> str:
    """Describe what a folder without the weights of a model holds instead, and what to do.

    Args:
        folder: Any folder.

    Returns:
        The end of a sentence that begins with the name of the folder.
    """
    if (folder / ".metadata").is_file():
        command = "python -m torch.distributed.checkpoint.format_utils dcp_to_torch"
        words = f"{command} {folder} {folder.name}.pt"
        if (folder / "meta.pt").is_file():  # of Lightning's ModelParallelStrategy and FSDPStrategy
            words = f"python -m lightning.pytorch.utilities.consolidate_checkpoint {folder}"
        return (
            "is a sharded checkpoint of torch.distributed.checkpoint. Its .metadata is a pickle, which can run code"
            f" when it is read: if you trust its source, convert it to one file by {words}"
        )
    found = sorted(folder.glob("checkpoint-*"), key=lambda path: int((re.findall(r"\d+", path.name) or [0])[-1]))
    found = [path for path in found if path.is_dir()][::-1]
    found += sorted(file for depth in ("", "*/", "*/*/") for ending in _ENDINGS for file in folder.glob(depth + ending))
    found += [path.parent for path in sorted(folder.glob("*/.metadata"))]
    some = ", ".join(map(str, found[:3])) + (f" and {len(found) - 3} more" if len(found) > 3 else "")
    return "has no model.safetensors or pytorch_model.bin, whole or with an index" + (f": name {some}" if found else "")
