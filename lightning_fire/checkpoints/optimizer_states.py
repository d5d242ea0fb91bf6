"""Optimizer states in checkpoints: found, and emptied, with their parameter groups kept."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from lightning_fire.atomic import atomic_file
from lightning_fire.checkpoints.networks import states_of
from lightning_fire.checkpoints.pickled import load_pickled

# as Hugging Face's Trainer and Accelerate write them
_FILES = ("optimizer.pt", "optimizer.bin", "optimizer_*.bin")
# of DeepSpeed, of FSDP, of several ranks: they hold float32 copies of the weights as well, or cannot be read here
_OTHERS = ("global_step*", "optimizer_*", "rank*-of-*-optimizer.pt", "optimizer.pt_*")


def optimizer_files(folder: Path) -> tuple[list[str], list[str]]:
    """Return the names in a folder that hold optimizer states: files that can be emptied, and others."""
    files = sorted({file.name for pattern in _FILES for file in folder.glob(pattern) if file.is_file()})
    others = sorted({path.name for pattern in _OTHERS for path in folder.glob(pattern)} - set(files))
    return files, others


def empty(path: Path, unsafe: bool = False) -> None:
    """Empty the optimizer states in a file; their parameter groups stay, so that training can be resumed."""
    content = load_pickled(path, unsafe, " If you trust where it comes from: --unsafe-pickle")
    states = states_of(content)
    if not states:
        raise ValueError(f"{path.name} holds no optimizer state that can be dropped here: remove the file by hand")
    drop(states)
    with atomic_file(path) as part:
        torch.save(content, part)


def drop(states: Iterable[dict[str, Any]]) -> None:
    """Empty optimizer states in place; fastai has a list with settings such as `do_wd` for each parameter."""
    for state in states:
        held = state["state"]
        settings = [{k: v for k, v in each.items() if isinstance(v, bool)} for each in held if isinstance(held, list)]
        state["state"] = settings if isinstance(held, list) else {}
