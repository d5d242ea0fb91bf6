"""From the training processes of a comparison to the one progress bar: a small file beside each run's logs."""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_fire.contracts import chunk_of, num_chunks_of

COMPARISON = "LIGHTNING_FIRE_COMPARISON"
"""Environment variable with the number of the process that a training is started by, and ends with."""


class Progress(NamedTuple):
    """Where a run is: epochs done of all, its chunk of data, counted from 1, of all, and whether its fit has ended."""

    epoch: int
    epochs: int
    chunk: int
    chunks: int
    ended: bool = False


class ProgressReport(Callback):
    """Writes a `Progress` at the end of each epoch, and at the end of the fit.

    A fit that is stopped from outside does not come to its end, though its process may exit as if all was well. A
    training whose comparison is gone ends at its next batch: started again, the comparison would train it once more in
    the same folder.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """End the process if it is an orphan."""
        _end_if_orphan(trainer)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """End the process if it is an orphan."""
        _end_if_orphan(trainer)

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
        chunk, chunks = chunk_of(trainer.datamodule) or 0, num_chunks_of(trainer.datamodule) or 1
        now = Progress(epoch, trainer.max_epochs, chunk + 1, chunks, ended)
        unfinished = self.path.with_suffix(".new")
        unfinished.write_text(json.dumps(now))
        unfinished.replace(self.path)


def _end_if_orphan(trainer: Trainer) -> None:
    """End at once if the comparison has been killed: nobody stops this process then, or waits for it.

    On Windows an orphan keeps the number of its parent, and goes on.
    """
    comparison = os.environ.get(COMPARISON)
    if os.name == "posix" and comparison and trainer.is_global_zero and os.getppid() != int(comparison):
        os._exit(1)  # without leaving anything more in the folder


def read_progress(path: Path) -> Progress | None:
    """Return what a run has written; None before its first epoch has ended."""
    return Progress(*json.loads(path.read_text())) if path.is_file() else None
