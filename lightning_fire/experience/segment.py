"""A stretch of a replay buffer, in memory or in a file that is never changed once it is full."""

import os
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import torch


class Segment:
    """Consecutive steps of all environments, rows of a structured array.

    Attributes:
        rows: The array, `(steps,)`; memory is taken as rows are written.
        fields: Its fields by name, `(steps, …)`: to write to one of these is faster than to a row.
        path: The file it lies in; None: in memory.
        is_new: Whether the file was made for this, and was not there before.
    """

    def __init__(self, rows: np.ndarray, path: Path | None = None, is_new: bool = True):
        self.rows, self.path, self.is_new = rows, path, is_new
        self.fields = {name: rows[name] for name in rows.dtype.names}

    @classmethod
    def new(cls, dtype: np.dtype, steps: int, place: Path | np.ndarray) -> "Segment":
        """Make one whose rows are still to be written: a file of a new name in a folder, or the rows that are given.

        Raises:
            OSError: If there is no room for all of the file.
        """
        if isinstance(place, np.ndarray):
            return cls(place)
        place.mkdir(parents=True, exist_ok=True)
        path = place / f"{uuid.uuid4().hex}.replay"
        try:
            rows = np.lib.format.open_memmap(path, "w+", dtype, (steps,))
            with open(path, "r+b") as file:  # a full disk shall be an error here, not a signal at some later row
                _reserve(file.fileno(), os.fstat(file.fileno()).st_size)
        except OSError as error:
            path.unlink(missing_ok=True)
            size = f"{steps * dtype.itemsize / 2**20:.0f} MiB"
            raise OSError(f"no room for {size} of replay in {place}: {error}") from error
        return cls(rows, path)

    def state(self, number: int) -> dict[str, Any]:
        """Return the first rows for a checkpoint: themselves, or where they lie."""
        if self.path is None:
            return {"rows": torch.from_numpy(self.rows[:number].view(np.uint8).copy())}
        self.rows.flush()
        return {"file": str(self.path)}

    @classmethod
    def restored(
        cls, state: dict[str, Any], dtype: np.dtype, steps: int, number: int, place: Path | np.ndarray, full: bool
    ) -> "Segment":
        """Make one of what `state` returned for the first rows.

        A full one that lies in a file is only read: any number of trainings can share it. Of any other the rows are
        copied.

        Raises:
            FileNotFoundError: If the file is gone.
        """
        in_file = isinstance(place, Path)
        if "file" in state:
            path = Path(state["file"])
            if not path.is_file() and in_file:
                path = place / path.name  # the folder may have moved
            if not path.is_file():
                raise FileNotFoundError(
                    f"the checkpoint's replay is neither at {state['file']} nor at {path}: only the last two"
                    " checkpoints of a training keep theirs; has the folder been moved?"
                )
            rows = np.load(path, mmap_mode="r", allow_pickle=False)
            if full and in_file:
                return cls(rows, path, is_new=False)
        else:
            rows = state["rows"].numpy().view(dtype)
        segment = cls.new(dtype, steps, place)
        segment.rows[:number] = rows[:number]
        return segment


def _reserve(file: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
