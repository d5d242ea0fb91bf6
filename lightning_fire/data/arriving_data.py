"""The base of our DataModules: data that arrives in chunks, by epochs, within one `trainer.fit`."""

from typing import Any

from lightning.pytorch import LightningDataModule
from lightning.pytorch.trainer.states import TrainerFn

from lightning_fire.data.epoch_plan import EpochPlan
from lightning_fire.data.trainer_plan import check_trainer


class ArrivingData(LightningDataModule):
    """Knows which chunk of data each epoch trains on, and announces new data by a changed `chunk`.

    Args:
        protocol: How the data arrives.
    """

    def __init__(self, protocol: EpochPlan):
        super().__init__()
        self.protocol = protocol
        self._last_chunk: int | None = None  # of which training data was asked for
        self._tested_chunk: int | None = None

    @property
    def num_chunks(self) -> int:
        """Number of chunks."""
        return self.protocol.num_chunks

    @property
    def epochs_per_chunk(self) -> tuple[int, ...]:
        """Epochs of each chunk."""
        return self.protocol.epochs_per_chunk

    @property
    def total_epochs(self) -> int:
        """Epochs of all chunks together: what `max_epochs` of the Trainer must be."""
        return sum(self.epochs_per_chunk)

    def chunk_at(self, epoch: int) -> int:
        """Return the chunk that an epoch trains on; both are counted from 0."""
        return self.protocol.chunk_at(epoch)

    def first_epoch(self, chunk: int) -> int:
        """Return the first epoch that trains on a chunk; both are counted from 0."""
        return self.protocol.first_epoch(chunk)

    @property
    def chunk(self) -> int:
        """The current chunk, from 0: it changes when new data has arrived.

        In `test` and `validate`: that of the checkpoint, or else the last that this object gave training data of.
        """
        if self._tested_chunk is not None:
            return self._tested_chunk
        return 0 if self.trainer is None else self.chunk_at(self.trainer.current_epoch)

    def setup(self, stage: str | None = None) -> None:
        """Check that Trainer and protocol suit one another.

        Args:
            stage: `fit`, `validate`, `test` or None.
        """
        if stage == "fit" and self.trainer is not None and not self.trainer.fast_dev_run:
            check_trainer(self.trainer, self.protocol)
        self._tested_chunk = None if stage == "fit" else self._last_chunk

    def state_dict(self) -> dict[str, Any]:
        """Return the current chunk, so that the test of a checkpoint knows what it had seen."""
        return {"chunk": self.chunk}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the chunk of a checkpoint that is tested or validated; in a fit the epoch tells it."""
        if self.trainer is not None and self.trainer.state.fn != TrainerFn.FITTING:
            self._tested_chunk = state_dict["chunk"]
