"""Open checkpoints of any known format."""

from collections.abc import Sequence
from pathlib import Path

from lightning_fire.checkpoints.folders import Folder, contents_of, index_of, kind_of
from lightning_fire.checkpoints.pickled import PickledCheckpoint
from lightning_fire.checkpoints.safetensors_file import Safetensors
from lightning_fire.checkpoints.stored import Checkpoint


def open_checkpoint(path: Path, unsafe_pickle: bool = False, keys: Sequence[str] = ()) -> Checkpoint:
    """Open a checkpoint of any known format.

    Args:
        path: A `.safetensors` file; a folder with `model.safetensors` or `pytorch_model.bin`, whole or with an index,
            or that index; or a file of `torch.save`: a Lightning checkpoint, a state dict, or several under keys.
        unsafe_pickle: Whether to unpickle arbitrary Python objects, which runs any code in the file.
        keys: Keys of the networks to use from a file of `torch.save` with several.

    Returns:
        The checkpoint, with `path`, `tensors`, `config`, `description`, `keys`, `read` and `save`. Values are not read
        yet.

    Raises:
        ValueError: If it is corrupt, of an unknown format, or holds several networks without a choice by `keys`.
        OSError: If it does not exist, or cannot be read.
        ImportError: If it needs safetensors, which is not installed.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    for kind in (Safetensors, PickledCheckpoint):
        if path.name == index_of(kind):
            return Folder(path.parent, kind, unsafe_pickle)
    if held := kind_of(path):
        return Folder(path, held, unsafe_pickle)
    if path.is_dir():
        raise ValueError(f"{path} {contents_of(path)}")
    if path.suffix == ".safetensors":
        return Safetensors(path)
    return PickledCheckpoint(path, unsafe_pickle, keys)
