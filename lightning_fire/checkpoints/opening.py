"""Open a checkpoint of any known format."""

from pathlib import Path

from lightning_fire.checkpoints.pickled import PickledCheckpoint
from lightning_fire.checkpoints.safetensors_file import SafetensorsFile
from lightning_fire.checkpoints.sharded import INDEX, SINGLE, ShardedSafetensors

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
