"""A fit under Lightning, quiet or with all callbacks of recipes, and the durations of its epochs."""

import contextlib
import io
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from lightning.pytorch import Callback, LightningDataModule, LightningModule
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.loggers import TensorBoardLogger
from quiet_trainer import quiet_trainer
from stopwatch import Stopwatch


def timed_fit(
    module: LightningModule, data: LightningDataModule, callbacks: Sequence[Callback], epochs: int, **options: Any
) -> list[float]:
    """Train without validation, with a TensorBoard logger where there are callbacks.

    Args:
        module: What is trained.
        data: On what.
        callbacks: Those of the Trainer.
        epochs: Number of epochs; the first warms up.
        options: More arguments of the Trainer.

    Returns:
        Seconds of each epoch after the first.
    """
    watch = Stopwatch("on_train_epoch_start", "on_train_end")
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):  # of the progress bar
        trainer = quiet_trainer(
            *callbacks,
            watch,
            max_epochs=epochs,
            reload_dataloaders_every_n_epochs=1,
            limit_val_batches=0,
            logger=TensorBoardLogger(folder) if callbacks else False,
            enable_progress_bar=any(isinstance(callback, ProgressBar) for callback in callbacks),
            **options,
        )
        trainer.fit(module, datamodule=data)
    starts = [*watch.times["on_train_epoch_start"][1:], *watch.times["on_train_end"]]
    return [end - start for start, end in pairwise(starts)]
