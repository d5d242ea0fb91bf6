"""Segments of a replay buffer: rows of consecutive steps, in memory or in a file that is not changed once full."""

import os
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch


def new_file(folder: Path, dtype: np.dtype, steps: int) -> np.ndarray:
    """Return rows to be written, `(steps,)`, of a file with a new name in a folder.

    Raises:
        OSError: If the disk has no room for all of the file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows = np.lib.format.open_memmap(folder / f"{uuid.uuid4().hex}.replay", "w+", dtype, (steps,))
    if hasattr(os, "posix_fallocate"):  # a full disk is an error here, instead of a signal at a later row
        with open(rows.filename, "r+b") as file:
            os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size)
    return rows


def files_of(segments: Iterable[np.ndarray]) -> set[Path]:
    """Return the files of those segments that are stored in one."""
    return {Path(rows.filename) for rows in segments if isinstance(rows, np.memmap)}


def segment_state(rows: np.ndarray, number: int) -> dict[str, Any]:
    """Return the first rows for a checkpoint: the rows themselves, or the location of their file."""
    if isinstance(rows, np.memmap):
        rows.flush()
        return {"file": str(rows.filename)}
    return {"rows": torch.from_numpy(rows[:number].view(np.uint8).copy())}


def stored_rows(state: dict[str, Any], dtype: np.dtype, folder: Path | None) -> np.ndarray:
    """Return the rows of a result of `segment_state`, those of a file as a read-only map.

    Raises:
        FileNotFoundError: If the file does not exist.
    """
    if "rows" in state:
        return state["rows"].numpy().view(dtype)
    path = Path(state["file"])
    if not path.is_file() and folder is not None:
        path = folder / path.name  # the folder may have moved
    if not path.is_file():
        raise FileNotFoundError(
            f"the checkpoint's replay is neither at {state['file']} nor at {path}: only the last two"
            " checkpoints of a training keep theirs; has the folder been moved?"
        )
    return np.load(path, mmap_mode="r", allow_pickle=False)
