"""Lightning's progress bar with the chunk of data, redrawn at most ten times a second."""

import time
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import TQDMProgressBar
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

from lightning_fire._lightning import undeclared
from lightning_fire.contracts import chunk_of, num_chunks_of

_PAUSE = 0.1  # seconds between two redraws


class ChunkProgressBar(TQDMProgressBar):
    """Progress bar that shows `Epoch 203 (chunk 2/2)` if the DataModule has `chunk` and `num_chunks`.

    If the module has a `step_loss`, as `LanguageModel` does, it is shown as `train/loss_step`. The bar is redrawn at
    most ten times a second, and when an epoch or a validation starts or ends. Lightning's bar is redrawn twice after
    each batch, which reads metrics from the GPU and takes as long as the step of a small network.
    """

    shows_step_loss = True
    _last_drawn_at = 0.0

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_epoch_start(trainer, pl_module)
        data = undeclared(trainer).datamodule
        chunk, num_chunks = chunk_of(data), num_chunks_of(data)
        if chunk is not None and num_chunks is not None:
            self.train_progress_bar.set_description(f"Epoch {trainer.current_epoch} (chunk {chunk + 1}/{num_chunks})")

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        """Metrics shown in the bar: those logged for it, and the loss of the last step."""
        loss = getattr(pl_module, "step_loss", None)
        metrics: dict[str, Any] = dict(super().get_metrics(trainer, pl_module))
        if isinstance(loss, Tensor) and loss.numel() == 1:
            metrics["train/loss_step"] = float(loss)  # waits for the GPU at each redraw
        return metrics

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        now, done = time.monotonic(), batch_idx + 1
        self.train_progress_bar.n = done  # for the next redraw
        if now - self._last_drawn_at >= _PAUSE and done % max(self.refresh_rate, 1) == 0:
            self._last_drawn_at = now
            super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking:
            self.train_progress_bar.refresh()
        super().on_validation_start(trainer, pl_module)
