"""Segments of a replay buffer: rows of consecutive steps, in memory or in a file that is not changed once full."""

import os
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch


def new_segment(dtype: np.dtype, steps: int, place: Path | np.ndarray) -> np.ndarray:
    """Return rows that are still to be written, `(steps,)`: of a file of a new name in a folder, or those given.

    Raises:
        OSError: If the disk has no room for all of the file.
    """
    if isinstance(place, np.ndarray):
        return place
    place.mkdir(parents=True, exist_ok=True)
    path = place / f"{uuid.uuid4().hex}.replay"
    try:
        rows = np.lib.format.open_memmap(path, "w+", dtype, (steps,))
        with open(path, "r+b") as file:  # a full disk raises an error here, instead of a signal at some later row
            _reserve(file.fileno(), os.fstat(file.fileno()).st_size)
    except OSError as error:
        path.unlink(missing_ok=True)
        size = f"{steps * dtype.itemsize / 2**20:.0f} MiB"
        raise OSError(f"no room for {size} of replay in {place}: {error}") from error
    return rows


def files_of(segments: Iterable[np.ndarray]) -> set[Path]:
    """Return the files of those segments that lie in one."""
    return {Path(rows.filename) for rows in segments if isinstance(rows, np.memmap)}


def segment_state(rows: np.ndarray, number: int) -> dict[str, Any]:
    """Return the first rows for a checkpoint, or the name of their file."""
    if isinstance(rows, np.memmap):
        rows.flush()
        return {"file": str(rows.filename)}
    return {"rows": torch.from_numpy(rows[:number].view(np.uint8).copy())}


def restored_segment(
    state: dict[str, Any], dtype: np.dtype, steps: int, number: int, place: Path | np.ndarray
) -> np.ndarray:
    """Return the rows that `segment_state` describes; read-only if they are those of its file.

    These are shared by any number of trainings, where there are more rows than these: nothing will be written into
    them. Else the rows are copied.

    Raises:
        FileNotFoundError: If the file is gone.
    """
    if "file" in state:
        path = Path(state["file"])
        if not path.is_file() and isinstance(place, Path):
            path = place / path.name  # the folder may have moved
        if not path.is_file():
            raise FileNotFoundError(
                f"the checkpoint's replay is neither at {state['file']} nor at {path}: only the last two"
                " checkpoints of a training keep theirs; has the folder been moved?"
            )
        kept = np.load(path, mmap_mode="r", allow_pickle=False)
        if number > steps and isinstance(place, Path):
            return kept
    else:
        kept = state["rows"].numpy().view(dtype)
    rows = new_segment(dtype, steps, place)
    rows[:number] = kept[:number]
    return rows


def _reserve(file: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
