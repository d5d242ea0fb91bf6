"""Lightning's progress bar, which also names the chunk of data."""

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import TQDMProgressBar

from lightning_fire.callbacks.timekeeper import chunk_of


class ChunkProgressBar(TQDMProgressBar):
    """Shows `Epoch 203 (chunk 2/2)` where the DataModule has `chunk` and `num_chunks`."""

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_epoch_start(trainer, pl_module)
        chunk, num_chunks = chunk_of(trainer.datamodule), getattr(trainer.datamodule, "num_chunks", None)
        if chunk is not None and num_chunks is not None:
            self.train_progress_bar.set_description(f"Epoch {trainer.current_epoch} (chunk {chunk + 1}/{num_chunks})")
