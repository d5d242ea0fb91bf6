"""From the training processes of a comparison to the one progress bar."""

from typing import Any, NamedTuple

from lightning.pytorch import Callback, LightningModule, Trainer

_link: tuple[Any, str] | None = None


class Progress(NamedTuple):
    """Where a run is: names, and epochs done of all."""

    run: str
    epoch: int
    epochs: int
    chunk: int
    chunks: int


def connect(queue: Any, run: str) -> None:
    """Make `ProgressReport` of this process send to a queue.

    Args:
        queue: A multiprocessing queue.
        run: Name of the run.
    """
    global _link
    _link = (queue, run)


class ProgressReport(Callback):
    """Sends a `Progress` at the end of each epoch."""

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Send."""
        if _link is not None:
            queue, run = _link
            chunk, chunks = getattr(trainer.datamodule, "chunk", 0), getattr(trainer.datamodule, "num_chunks", 1)
            queue.put(Progress(run, trainer.current_epoch + 1, trainer.max_epochs, chunk + 1, chunks))
