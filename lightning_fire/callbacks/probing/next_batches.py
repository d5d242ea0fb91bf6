"""Read the next batches of an epoch in separate worker processes."""

import random
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Trainer
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from lightning_fire._lightning import combined_like, combined_loader, transferred
from lightning_fire._private import copy_of_loader
from lightning_fire.messages import inform, rank_zero_warn, tell_once


def next_batches(trainer: Trainer, number: int) -> Iterator[Any]:
    """Yield the batches after the current one, on the device, without changing the batches that training gets.

    They are read in new worker processes, as many as the training has and at least one, so that samplers, generators,
    data sets and open files of the training are not changed. The order is that of the epoch if it depends on a seed and
    the epoch only, as with a `DistributedSampler`; otherwise it is drawn again. At most the remaining batches of the
    epoch are read; none if they cannot be read, with the reason logged once.
    """
    loaders, done = combined_loader(trainer).flattened, trainer.fit_loop.batch_idx + 1
    number = int(min(number, trainer.num_training_batches - done))
    if number <= 0:
        return
    if reason := _why_not_read(loaders):
        tell_once(trainer, f"Events use 1 batch instead of {number + 1}: {reason}.", rank_zero_warn)
        return
    ahead = _reader(trainer, done, number)
    batches, start, read = None, time.perf_counter(), 0
    while True:  # exhaust it, which ends the processes
        try:
            batches = iter(ahead) if batches is None else batches
            batch = next(batches)
        except StopIteration:
            break
        except Exception as error:
            why = str(error).strip().rpartition("\n")[2] or type(error).__name__  # without the worker's traceback
            message = f"Events use {read + 1} batches instead of {number + 1}: the next one could not be read ({why})."
            tell_once(trainer, message, rank_zero_warn)
            return
        read += 1
        yield transferred(trainer, batch)
    message = (
        f"An event has read {read} more batches, in {ahead.num_workers} worker process(es) that were started for it:"
        f" with their use {time.perf_counter() - start:.1f} s. num_batches=1 uses the batch in hand alone."
    )
    tell_once(trainer, message, inform, key="more batches")


def _why_not_read(loaders: list[Any]) -> str:
    """Return why loaders cannot be read in addition to the training; empty if they can."""
    for loader in loaders:
        if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
            return f"the data of {type(loader).__name__} may be readable only once, and training needs it"
    return ""


def _reader(trainer: Trainer, done: int, number: int) -> DataLoader[Any]:
    """Return a loader of some batches after the first `done` of this epoch."""
    combined = combined_loader(trainer)
    contexts = (loader.multiprocessing_context for loader in combined.flattened if loader.num_workers)
    seed = hash((trainer.current_epoch, done, trainer.global_rank)) % 2**63
    return DataLoader(
        _Ahead(combined_like(combined, [copy_of_loader(loader) for loader in combined.flattened]), done, number),
        batch_size=None,
        collate_fn=_unchanged,
        num_workers=max(1, *(loader.num_workers for loader in combined.flattened)),
        multiprocessing_context=next(contexts, None),
        generator=torch.Generator().manual_seed(seed),
    )


class _Ahead(IterableDataset[Any]):
    """Some later batches of loaders; each worker process reads every n-th of them."""

    def __init__(self, combined: Any, done: int, number: int):
        self.combined, self.done, self.number = combined, done, number

    def __iter__(self) -> Iterator[Any]:
        worker: Any = get_worker_info()
        for loader in self.combined.flattened:
            _seed(worker.seed - worker.id)  # all workers draw the same order
            _keep_part(loader, self.done, self.number, worker.id, worker.num_workers)
        _seed(worker.seed)
        for loader in self.combined.flattened:
            object.__setattr__(worker, "dataset", loader.dataset)  # read-only; `worker_init_fn` uses it
            if loader.num_workers and loader.worker_init_fn is not None:
                loader.worker_init_fn(worker.id)
            plain = {"num_workers": 0, "persistent_workers": False, "prefetch_factor": None, "timeout": 0}
            vars(loader).update(plain, pin_memory=False)
        for batch, *_ in self.combined:
            yield batch


class _Part(list[Any]):
    """A part of a sampler's indices, with its other attributes."""

    def __init__(self, indices: Any, sampler: Any):
        super().__init__(indices)
        vars(self).update(getattr(sampler, "__dict__", {}))


def _keep_part(loader: DataLoader[Any], done: int, number: int, first: int, stride: int) -> None:
    """Restrict a copy of a loader to every `stride`-th of some batches after the first `done`."""
    if hasattr(loader.sampler, "skip"):
        loader.sampler.skip = 0  # of a `ResumableLoader` in a resumed epoch
    name = "sampler" if loader.batch_sampler is None else "batch_sampler"
    order = vars(loader)[name]
    start = done % max(1, len(loader))  # a shorter one of several loaders begins again
    vars(loader)[name] = _Part(islice(order, start + first, start + number, stride), order)


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def _unchanged(batch: Any) -> Any:
    return batch
