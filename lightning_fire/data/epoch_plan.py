"""Assignment of epochs to chunks of data."""

from collections.abc import Sequence
from itertools import accumulate


class EpochPlan:
    """Chunks of data, one after another, each trained on for a number of epochs; both are counted from 0.

    Attributes:
        num_chunks: Number of chunks.
        epochs: Epochs of each chunk: one number for all, or one per chunk.
    """

    num_chunks: int
    epochs: int | tuple[int, ...]

    def __post_init__(self) -> None:
        if isinstance(self.epochs, Sequence):
            object.__setattr__(self, "epochs", tuple(self.epochs))
        if len(self.epochs_per_chunk) != self.num_chunks:
            raise ValueError(f"`epochs` must be one number or one per chunk ({self.num_chunks}), got {self.epochs!r}")
        if min(self.epochs_per_chunk) < 1:
            raise ValueError(f"`epochs` must be at least 1, got {self.epochs!r}")

    @property
    def epochs_per_chunk(self) -> tuple[int, ...]:
        """Epochs of each chunk, one number per chunk."""
        return self.epochs if isinstance(self.epochs, tuple) else (self.epochs,) * self.num_chunks

    def first_epoch(self, chunk: int) -> int:
        """Return the first epoch of a chunk."""
        return sum(self.epochs_per_chunk[:chunk])

    def chunk_at(self, epoch: int) -> int:
        """Return the chunk of an epoch; the last chunk for any epoch after the end."""
        ends = accumulate(self.epochs_per_chunk)
        return min(sum(end <= epoch for end in ends), self.num_chunks - 1)
