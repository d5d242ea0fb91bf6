"""Base class of `Classifier` and `LanguageModel`: a schedule and an evaluation in each chunk of data."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from math import isfinite
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.optim import Optimizer

from lightning_fire._lightning import transferred, undeclared
from lightning_fire.contracts import HasChunkAt, HasStepsPerChunk, implements
from lightning_fire.modules.chunk_schedule import ChunkSchedule, Decay, learning_rate_factors


class ChunkModule(pl.LightningModule):
    """Base class of modules whose learning rate restarts in each chunk, and that are evaluated at its start.

    Subclasses implement `_values_at_new_data`, to log after the validation batches.
    """

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Evaluate at the start of a chunk. Lightning calls this after the callbacks, which act at its first batch."""
        data, epoch = undeclared(self.trainer).datamodule, self.current_epoch
        if (
            epoch
            and batch_idx == 0
            and implements(data, HasChunkAt)
            and data.chunk_at(epoch) != data.chunk_at(epoch - 1)
        ):
            self._measure_at_new_data()

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Context manager: evaluation mode without gradients."""
        modes = {module: module.training for module in self.modules()}
        self.eval()
        with torch.no_grad():
            yield
        for module, mode in modes.items():
            module.training = mode

    def _measure_at_new_data(self) -> None:
        trainer = undeclared(self.trainer)
        batches, limit = trainer.datamodule.val_dataloader(), trainer.limit_val_batches
        if isinstance(limit, float):
            limit = None if limit == 1 else int(len(batches) * limit)
        if limit == 0:
            return
        with self._evaluating():
            for batch in islice(batches, limit):
                batch = transferred(trainer, batch)
                with trainer.precision_plugin.forward_context():
                    self._evaluate_at_new_data(batch)
        if values := {key: value.item() for key, value in self._values_at_new_data().items()}:
            for logger in self.loggers:
                logger.log_metrics(values, step=trainer.global_step)

    def _evaluate_at_new_data(self, batch: Any) -> None:
        self.validation_step(batch, 0)

    def _values_at_new_data(self) -> dict[str, Tensor]:
        raise NotImplementedError

    def _scheduled(
        self, optimizer: Optimizer, warmup: Sequence[int | float], decay: Decay = "none", minimum: float = 0.0
    ) -> Any:
        """Result for `configure_optimizers`, see `learning_rate_factors`."""
        data = undeclared(self.trainer).datamodule
        if implements(data, HasStepsPerChunk):
            steps = data.steps_per_chunk()
        elif isfinite(total := self.trainer.estimated_stepping_batches):
            steps = [int(total)]
        else:
            raise ValueError("`warmup` is a fraction of the training: set max_epochs or max_steps, or use warmup=0")
        schedule = ChunkSchedule(optimizer, learning_rate_factors(steps, warmup, decay, minimum))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    @property
    def _distributed(self) -> bool:
        return self.trainer.world_size > 1
