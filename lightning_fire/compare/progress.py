"""From the training processes of a comparison to the one progress bar: a small file beside each run's logs."""

import json
import os
from pathlib import Path
from typing import NamedTuple

from lightning.pytorch import Callback, LightningModule, Trainer


class Progress(NamedTuple):
    """Where a run is: epochs done of all, its chunk of data, counted from 1, of all, and whether its fit has ended."""

    epoch: int
    epochs: int
    chunk: int
    chunks: int
    ended: bool = False


class ProgressReport(Callback):
    """Writes a `Progress` at the end of each epoch, and at the end of the fit.

    A fit that is stopped from outside does not come to its end, though its process may exit as if all was well.

    Args:
        path: The file.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write."""
        self._write(trainer, trainer.current_epoch + 1, ended=False)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write."""
        self._write(trainer, trainer.current_epoch, ended=True)

    def _write(self, trainer: Trainer, epoch: int, ended: bool) -> None:
        """Write; a reader sees the old file or the new one, never half of one."""
        if not trainer.is_global_zero:
            return
        chunk, chunks = getattr(trainer.datamodule, "chunk", 0), getattr(trainer.datamodule, "num_chunks", 1)
        now = Progress(epoch, trainer.max_epochs, int(chunk) + 1, int(chunks), ended)
        unfinished = self.path.with_suffix(".new")
        unfinished.write_text(json.dumps(now))
        unfinished.replace(self.path)


def read_progress(path: Path) -> Progress | None:
    """Return what a run has written; None before its first epoch has ended.

    Args:
        path: The file.
    """
    return Progress(*json.loads(path.read_text())) if path.is_file() else None
