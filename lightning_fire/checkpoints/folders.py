"""Folders of checkpoint files: their tensors, copies, and hints on other files in the folder."""

import json
import re
import shutil
from collections.abc import Sequence
from math import inf
from pathlib import Path

from torch import Tensor

from lightning_fire.atomic import atomic_folder
from lightning_fire.checkpoints.optimizer_states import empty
from lightning_fire.checkpoints.pickled import PickledCheckpoint
from lightning_fire.checkpoints.safetensors_file import Safetensors
from lightning_fire.checkpoints.stored import Checkpoint, Edit, Stored, in_layer_order
from lightning_fire.where.selection import shorten

_STATE = re.compile(r"optimizer|optim_states|scheduler|scaler|rng|random|training_args|rank\d|zero_")  # not of a model
_ENDINGS = ("*.safetensors", "*.ckpt", "*.pt", "*.pth", "*.bin")


class Folder(Checkpoint):
    """Tensors of the files of one kind in a folder: those named in an index, or a single file."""

    def __init__(self, path: Path, kind: type[Safetensors | PickledCheckpoint], unsafe: bool = False):
        self.path, self.kind, self._unsafe = path, kind, unsafe
        self.emptied: Sequence[str] = ()  # files whose optimizer states are emptied in a copy
        index = _read_index(path / index_of(kind)) if (path / index_of(kind)).is_file() else {}
        files = list(dict.fromkeys(index.values())) or [kind.single]
        if missing := [file for file in files if not (path / file).is_file()]:
            raise FileNotFoundError(f"{path} lacks {', '.join(missing)}, which its index names")
        tensors: list[Stored] = []
        self._shard_of: dict[str, Safetensors | PickledCheckpoint] = {}
        for shard in (kind(path / file, unsafe) for file in files):
            held = {name for stored in shard.tensors for name in stored.names}
            named = [name for name, file in index.items() if file == shard.path.name] if index else held
            if lost := [name for name in named if name not in held]:
                raise ValueError(f"{shard.path} does not hold {lost[0]}, as the index says it does")
            taken = [stored for stored in shard.tensors if not set(stored.names).isdisjoint(named)]
            self._shard_of |= dict.fromkeys([name for stored in taken for name in stored.names], shard)
            tensors += taken
        self.tensors = in_layer_order(tensors) if kind is Safetensors else tensors
        words = "safetensors" if kind is Safetensors else "torch.save"
        self.description = f"{words} in {len(files)} file{'s' * (len(files) > 1)}, {len(self.tensors)} tensors"

    def read(self, name: str) -> Tensor:
        """Return one tensor."""
        return self._shard_of[name].read(name)

    def notes(self) -> list[str]:
        """Return a note on other weight files in the folder, which are copied unchanged."""
        read = {shard.path for shard in self._shard_of.values()}
        files = (file for depth in ("", "*/") for ending in _ENDINGS for file in sorted(self.path.glob(depth + ending)))
        others = [
            str(file.relative_to(self.path)) for file in files if file not in read and not _STATE.match(file.name)
        ]
        return [f"also in the folder, and not changed: {shorten(others)}"] if others else []

    def save(self, output: Path, names: Sequence[str], change: Edit) -> None:
        """Write a copy of the folder with some tensors changed, one file at a time; links are followed."""
        here, there = self.path.resolve(), output.resolve()
        if here != there and (here in there.parents or there in here.parents):
            raise ValueError(f"{output} and {self.path}: one must not contain the other")
        shards = list(dict.fromkeys(self._shard_of[name] for name in names))
        changed = {shard.path.name for shard in shards}
        with atomic_folder(output) as part:
            shutil.copytree(self.path, part, ignore=lambda at, _: changed if Path(at) == self.path else set())
            for name in self.emptied:
                empty(part / name, self._unsafe)
            for shard in shards:
                shard.save(part / shard.path.name, [name for name in names if self._shard_of[name] is shard], change)


def kind_of(folder: Path) -> type[Safetensors | PickledCheckpoint] | None:
    """Return the kind of the files with the weights of a folder; None if it has none."""
    for kind in (Safetensors, PickledCheckpoint):
        if any((folder / name).is_file() for name in (kind.single, index_of(kind))):
            return kind
    return None


def index_of(kind: type[Safetensors | PickledCheckpoint]) -> str:
    """Return the name of the index file, which maps each tensor to a file of the folder."""
    return f"{kind.single}.index.json"


def _read_index(path: Path) -> dict[str, str]:
    """Map each tensor to the name of its file."""
    try:
        files = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        outside = [file for file in files.values() if Path(file).name != file or file == ".."]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:  # of JSON, UTF-8, other content
        raise ValueError(f"{path} is not an index, a `weight_map` from tensors to files: {error!r}") from None
    if outside:
        raise ValueError(f"{path} names {outside[0]!r}, which is not a file of its folder")
    return dict(files)


def contents_of(folder: Path) -> str:
    """Complete a sentence about a folder without model weights: its content and advice."""
    if (folder / ".metadata").is_file():
        command = "python -m torch.distributed.checkpoint.format_utils dcp_to_torch"
        words = f"{command} {folder} {folder.name}.pt"
        if (folder / "meta.pt").is_file():  # of Lightning's ModelParallelStrategy and FSDPStrategy
            words = f"python -m lightning.pytorch.utilities.consolidate_checkpoint {folder}"
        return (
            "is a sharded checkpoint of torch.distributed.checkpoint. Its .metadata is a pickle, which can run code"
            f" when it is read: if you trust its source, convert it to one file by {words}"
        )
    files = (file for depth in ("", "*/", "*/*/") for ending in _ENDINGS for file in folder.glob(depth + ending))
    files = (file for file in files if not _STATE.match(file.name))
    found = {file.parent if kind_of(file.parent) else file for file in files}
    found |= {file.parent for file in folder.glob("*/.metadata")}
    named = f": name {shorten(list(map(str, sorted(found, key=_folders_first))), most=3)}" if found else ""
    return f"has no model.safetensors or pytorch_model.bin, whole or with an index{named}"


def _folders_first(path: Path) -> tuple[object, ...]:
    """Order paths: folders before files; in a folder its checkpoints last, the newest of them first."""
    step = re.fullmatch(r"checkpoint-(\d+)", path.name)
    return path.is_file(), path.parent, -int(step[1]) if step else -inf, path.name
