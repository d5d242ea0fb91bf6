"""The paper's three protocols: the training samples of each chunk, and its epochs.

Data arrives in *chunks*, counted from 0; each is trained on for a number of epochs before the next arrives. All draws
come from a generator seeded with `seed`: they are equal on every rank and platform, and do not change the global random
state.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import ClassVar, Literal

import torch
from torch import Tensor

Access = Literal["cumulative", "current"]


class EpochPlan:
    """Chunks of data, each trained on for a number of epochs; both are counted from 0.

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


class Protocol(EpochPlan, ABC):
    """Rule for the arrival of labeled samples.

    Attributes:
        access: Samples that a chunk trains on: `cumulative`, all so far (the paper), or `current`, only its new ones.
        by_class: Whether the chunks are made of classes, so that labels are needed.
        online: Whether the metric is the accuracy or the error during training, see `lightning_fire.data.streams`.
    """

    access: Access
    by_class: ClassVar[bool] = False
    online: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.access not in ("cumulative", "current"):
            raise ValueError(f"`access` must be 'cumulative' or 'current', got {self.access!r}")
        if self.num_chunks < 1:
            raise ValueError(f"`num_chunks` must be at least 1, got {self.num_chunks}")
        super().__post_init__()

    def indices(self, labels: Tensor, num_classes: int | None, seed: int) -> list[Tensor]:
        """Return the sample indices of each chunk, int64 (n_chunk,) in [0, N).

        Args:
            labels: Class of each training sample, int64 (N,) in [0, num_classes). Protocols that are not `by_class` use
                only their number.
            num_classes: Number of classes of the whole data set; may be None if the protocol is not `by_class`.
            seed: Seed of the draw.

        Raises:
            ValueError: If the data cannot be split in this way.
        """
        new = self._new(labels, num_classes, seed)
        if empty := [chunk for chunk, samples in enumerate(new) if not len(samples)]:
            raise ValueError(f"every chunk must have at least 1 new sample, but chunks {empty} of {self} have none")
        return new if self.access == "current" else [torch.cat(new[: chunk + 1]) for chunk in range(len(new))]

    def classes(self, num_classes: int | None, seed: int) -> list[Tensor | None]:
        """Return the classes seen up to each chunk, ascending, int64; None if all are present from the start.

        Args:
            num_classes: Number of classes of the whole data set.
            seed: Seed of the draw, the same as for `indices`.
        """
        return [None] * self.num_chunks

    @abstractmethod
    def _new(self, labels: Tensor, num_classes: int | None, seed: int) -> list[Tensor]: ...


@dataclass(frozen=True)
class WarmStart(Protocol):
    """Part of the data first, then all of it (paper, section 5.1 and appendix: 10 % for 1000 epochs, then 100 for all).

    Args:
        fraction: Fraction of the samples in the first chunk, strictly between 0 and 1.
        epochs: Epochs of the two chunks, or one number for both.
        access: `cumulative`: the second chunk has all samples; `current`: only those left out of the first.

    Raises:
        ValueError: If an argument is out of its range.
    """

    fraction: float = 0.1
    epochs: int | tuple[int, ...] = (1000, 100)
    access: Access = "cumulative"
    num_chunks: ClassVar[int] = 2  # type: ignore[misc]

    def __post_init__(self) -> None:
        if not 0 < self.fraction < 1:
            raise ValueError(f"`fraction` must be strictly between 0 and 1, got {self.fraction!r}")
        super().__post_init__()

    def _new(self, labels: Tensor, num_classes: int | None, seed: int) -> list[Tensor]:
        n = len(labels)
        if self.fraction * n < 1:
            raise ValueError(f"`fraction` must give at least 1 sample, got {self.fraction} of {n}")
        first = round(self.fraction * n)
        return list(_permutation(n, seed).split([first, n - first]))


@dataclass(frozen=True)
class Continual(Protocol):
    """Equal parts of the data, one after another (paper: 10 %, 20 %, … 100 %, 100 epochs each).

    If the number of samples N is not a multiple of k, chunk i ends at `round(i·N/k)`: sizes differ by at most one.

    Args:
        num_chunks: Number of chunks.
        epochs: Epochs of each chunk: one number for all, or one per chunk.
        access: `cumulative`: a chunk trains on all samples so far; `current`: on the new ones only.

    Raises:
        ValueError: If an argument is out of its range.
    """

    num_chunks: int = 10
    epochs: int | tuple[int, ...] = 100
    access: Access = "cumulative"

    def _new(self, labels: Tensor, num_classes: int | None, seed: int) -> list[Tensor]:
        n, k = len(labels), self.num_chunks
        if k > n:
            raise ValueError(f"`num_chunks` must not exceed the number of samples ({n}), got {k}")
        ends = [round(i * n / k) for i in range(k + 1)]
        return list(_permutation(n, seed).split([end - start for start, end in pairwise(ends)]))


@dataclass(frozen=True)
class ClassIncremental(Protocol):
    """Equally many new classes in every phase, in a seeded order (paper: 20 phases, 100 epochs each).

    Args:
        num_chunks: Number of phases, each a chunk; must divide the number of classes.
        epochs: Epochs of each phase: one number for all, or one per phase.
        access: `cumulative`: a phase trains on all classes so far; `current`: on the new ones only.

    Raises:
        ValueError: If an argument is out of its range.
    """

    num_chunks: int = 20
    epochs: int | tuple[int, ...] = 100
    access: Access = "cumulative"
    by_class: ClassVar[bool] = True

    def classes(self, num_classes: int | None, seed: int) -> list[Tensor | None]:
        """Return the classes seen up to each phase, ascending, int64."""
        new = self._new_classes(num_classes, seed)
        return [torch.cat(new[: phase + 1]).sort().values for phase in range(self.num_chunks)]

    def _new_classes(self, num_classes: int | None, seed: int) -> tuple[Tensor, ...]:
        if num_classes is None:
            raise ValueError("`num_classes` must be known for a class-incremental protocol, got None")
        if num_classes % self.num_chunks:
            raise ValueError(f"`num_chunks` must divide the number of classes ({num_classes}), got {self.num_chunks}")
        return _permutation(num_classes, seed).split(num_classes // self.num_chunks)

    def _new(self, labels: Tensor, num_classes: int | None, seed: int) -> list[Tensor]:
        new_classes = self._new_classes(num_classes, seed)
        if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < sum(map(len, new_classes)):
            raise ValueError(f"`labels` must be in [0, {num_classes}), got {labels.min()} to {labels.max()}")
        return [torch.isin(labels, classes).nonzero().squeeze(1) for classes in new_classes]


def _permutation(n: int, seed: int) -> Tensor:
    return torch.randperm(n, device="cpu", generator=torch.Generator().manual_seed(int(seed)))


warm_start = WarmStart()  # the paper's settings
continual = Continual()
class_incremental = ClassIncremental()
