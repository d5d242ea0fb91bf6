"""A DataLoader whose batches are a pure function of seed, epoch and batch number, on every rank, after every resume."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

_SEED_STRIDE = 1_000_003  # torch seeds an epoch with seed + epoch: distinguishes the epochs of seeds 0, 1, 2


class EpochSampler(DistributedSampler[Any]):
    """Sample indices of one epoch: a permutation by seed and epoch, equal on all ranks; each takes its part.

    As in torch, up to (number of ranks − 1) samples are repeated, so that all parts have the same size. Lightning sets
    its epoch and does not replace it. Rank and number of ranks are by default those of the process group.
    """

    dataset: Any

    def __init__(
        self,
        dataset: Any,
        shuffle: bool = True,
        seed: int = 0,
        num_replicas: int | None = None,
        rank: int | None = None,
    ):
        num_replicas = world_size() if num_replicas is None else num_replicas
        rank = (torch.distributed.get_rank() if _is_distributed() else 0) if rank is None else rank
        super().__init__(dataset, num_replicas, rank, shuffle=shuffle, seed=seed * _SEED_STRIDE)
        self.skip = 0  # number of samples of the epoch used before a resume

    def order(self) -> torch.Tensor:
        """Return the sample indices of the epoch for this rank, without the skipped ones, int64 (samples,)."""
        size = len(self.dataset)
        numbers = torch.arange(size, device="cpu")
        if self.shuffle:
            seeded = torch.Generator("cpu").manual_seed(int(self.seed) + self.epoch)
            numbers = torch.randperm(size, device="cpu", generator=seeded)
        positions = self.rank + self.num_replicas * torch.arange(self.num_samples, device="cpu")
        own = positions % size  # the end repeats the first ones
        return numbers[own[self.skip :]]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.order().tolist())


class EpochBatchSampler(EpochSampler):
    """Batch sampler of the same order: one index tensor per batch, int64 (batch_size,); the last may be shorter."""

    def __init__(self, dataset: Any, batch_size: int, **kwargs: Any):
        super().__init__(dataset, **kwargs)
        self.batch_size = batch_size

    def __iter__(self) -> Iterator[Any]:
        order = self.order()
        return iter(order.split(self.batch_size) if len(order) else ())  # without it, one batch of no samples

    def __len__(self) -> int:
        return num_batches(len(self.dataset), self.batch_size, self.num_replicas)


class ResumableLoader(DataLoader[Any]):
    """DataLoader of the batches of the current epoch; in a resumed epoch, only those not yet trained on.

    With `by_batch` the data set is indexed with one tensor per batch, without a Python call per sample. `batch_size` is
    per rank. A `sampler` replaces `shuffle` and `seed`.
    """

    dataset: Any
    sampler: Any  # an EpochSampler

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        by_batch: bool = False,
        shuffle: bool = True,
        seed: int = 0,
        num_workers: int = 0,
        sampler: EpochSampler | None = None,
    ):
        if sampler is None and by_batch:
            sampler = EpochBatchSampler(dataset, batch_size, shuffle=shuffle, seed=seed)
        sampler = sampler or EpochSampler(dataset, shuffle, seed)
        super().__init__(
            dataset,
            batch_size=None if by_batch else batch_size,
            sampler=sampler,
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
            generator=torch.Generator(),  # for torch's draw of the workers' seed: not from the global random state
        )
        self.samples_per_batch = batch_size
        self._position = (-1, 0)  # epoch, number of batches handed out in it
        self._resume_from = (-1, 0)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        # A generator: nothing is drawn before the first batch is requested. Lightning calls `iter` before it sets the
        # epoch, and a callback may read a few batches in between.
        epoch = self.sampler.epoch
        start = self._resume_from[1] if self._resume_from[0] == epoch else 0
        self.sampler.skip = start * self.samples_per_batch
        self.generator.manual_seed(self.sampler.seed + epoch)
        for batches_done, batch in enumerate(super().__iter__(), start + 1):
            self._position = (epoch, batches_done)
            yield batch

    def __len__(self) -> int:
        return num_batches(len(self.dataset), self.samples_per_batch, self.sampler.num_replicas)

    def state_dict(self) -> dict[str, int]:
        """State: the epoch and the number of batches handed out in it; Lightning puts it into the checkpoint."""
        epoch, batches = self._position
        return {"epoch": epoch, "batches": batches}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Skip the batches already handed out, only in that epoch; the first of several positions in it counts."""
        epoch, batches = state_dict["epoch"], state_dict["batches"]
        known, done = self._resume_from
        self._resume_from = (epoch, min(batches, done) if known == epoch else batches)


def num_batches(num_samples: int, batch_size: int, num_replicas: int = 1) -> int:
    """Return the number of batches of each rank in an epoch, including an incomplete last one.

    Example:
        >>> num_batches(1000, batch_size=256), num_batches(1000, batch_size=256, num_replicas=2)
        (4, 2)
    """
    samples_per_rank = -(-num_samples // num_replicas)
    return -(-samples_per_rank // batch_size)


_alone: ContextVar[bool] = ContextVar("alone", default=False)


@contextmanager
def ranks_of(trainer: Any) -> Iterator[None]:
    """Context manager: samplers divide the data among the ranks of the Trainer, which may be a single one."""
    token = _alone.set(trainer is not None and trainer.world_size == 1)
    try:
        yield
    finally:
        _alone.reset(token)


def goes_to_gpu(trainer: Any) -> bool:
    """Return whether a Trainer sends batches to a CUDA device, which is faster from pinned memory."""
    return trainer is not None and trainer.strategy.root_device.type == "cuda" and torch.cuda.is_available()


def world_size() -> int:
    """Return the number of processes of the process group; 1 without one, or for a single-process Trainer."""
    return torch.distributed.get_world_size() if _is_distributed() else 1


def _is_distributed() -> bool:
    return not _alone.get() and torch.distributed.is_available() and torch.distributed.is_initialized()
