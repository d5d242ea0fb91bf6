"""Find and empty optimizer states in checkpoints; parameter groups are kept."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from lightning_fire.atomic import atomic_file
from lightning_fire.checkpoints.networks import states_of
from lightning_fire.checkpoints.pickled import load_pickled

# written by Hugging Face's Trainer and Accelerate
_FILES = ("optimizer.pt", "optimizer.bin", "optimizer_*.bin")
# of DeepSpeed, FSDP or several ranks: these also contain float32 copies of weights, or cannot be read here
_OTHERS = ("global_step*", "optimizer_*", "rank*-of-*-optimizer.pt", "optimizer.pt_*")


def optimizer_files(folder: Path) -> tuple[list[str], list[str]]:
    """Return the names of files with optimizer states in a folder: those that can be emptied, and others."""
    files = sorted({file.name for pattern in _FILES for file in folder.glob(pattern) if file.is_file()})
    others = sorted({path.name for pattern in _OTHERS for path in folder.glob(pattern)} - set(files))
    return files, others


def empty(path: Path, unsafe: bool = False) -> None:
    """Empty the optimizer states in a file; parameter groups are kept, so that training can be resumed."""
    content = load_pickled(path, unsafe, " If you trust where it comes from: --unsafe-pickle")
    states = states_of(content)
    if not states:
        raise ValueError(f"{path.name} holds no optimizer state that can be dropped here: remove the file by hand")
    drop(states)
    with atomic_file(path) as part:
        torch.save(content, part)


def drop(states: Iterable[dict[str, Any]]) -> None:
    """Empty optimizer states in place; fastai keeps a list with settings such as `do_wd` per parameter."""
    for state in states:
        held = state["state"]
        settings = [{k: v for k, v in each.items() if isinstance(v, bool)} for each in held if isinstance(held, list)]
        state["state"] = settings if isinstance(held, list) else {}
