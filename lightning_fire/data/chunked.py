"""A LightningDataModule whose training data arrives in chunks, for any data set, within one `trainer.fit`."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from lightning_fire.data.arriving_data import ArrivingData
from lightning_fire.data.protocols import Protocol, warm_start
from lightning_fire.data.resumable_loader import EpochSampler, ResumableLoader, num_batches, world_size
from lightning_fire.data.samples import TensorSubset, Transformed, is_tensors, labels_of, normalize
from lightning_fire.data.streams import Samples, Stream


class ChunkedDataModule(ArrivingData[Protocol]):
    """Training data that arrives in chunks; one `trainer.fit` trains on all of them.

    The Trainer must have `max_epochs` equal to `total_epochs`, and `reload_dataloaders_every_n_epochs=1`: the training
    data is then a pure function of the epoch, and a resumed run draws exactly the batches of an uninterrupted one
    (except for random transforms). Callbacks recognize new data by a change of `chunk`.

    A `TensorDataset` of uint8 images (N, C, H, W) and int64 labels (N,) is the fast path: whole batches are indexed at
    once, and images become float32 in [0, 1], normalized with `mean` and `std`, on the device.

    The validation data is the whole test data, as in the paper: for monitoring, not for model selection.
    A `Stream` changes it with the task, as it changes the training data; it needs `TensorDataset`s of inputs and
    targets.

    For a named data set, subclass it and override `load`.

    Args:
        train: Map-style training set. Class-incremental protocols need its labels: the second tensor of a
            `TensorDataset`, or an attribute `targets` or `labels`.
        test: Map-style test set.
        protocol: Schedule of the data; the default is the paper's warm start.
        batch_size: Samples per batch and device. An incomplete last batch is kept, as in the paper.
        seed: Seed of the split into chunks and of the order of the batches.
        num_workers: Worker processes; needed only if samples are read or transformed one by one.
        transform: Function applied to each training image before normalization (augmentation; the paper has none).
        mean: Mean of each channel of the training images, in [0, 1]; for the test images too.
        std: Standard deviation of each channel of the training images, in [0, 1]; for the test images too.
        num_classes: Number of classes; None: one more than the largest label.
        test_batch_size: Samples per batch of test data and device. Default: `batch_size`.

    Raises:
        ValueError: If an argument is out of range, or `protocol` does not fit the data (when training starts).
        MisconfigurationException: If the Trainer would not train on the chunks as planned (when training starts).
    """

    def __init__(
        self,
        train: Dataset[Any] | None = None,
        test: Dataset[Any] | None = None,
        protocol: Protocol = warm_start,
        batch_size: int = 256,
        seed: int = 0,
        num_workers: int = 0,
        transform: Callable[[Any], Any] | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        num_classes: int | None = None,
        test_batch_size: int | None = None,
    ):
        super().__init__(protocol)
        for name, size in (("batch_size", batch_size), ("test_batch_size", test_batch_size)):
            if size is not None and size < 1:
                raise ValueError(f"`{name}` must be at least 1, got {size}")
        if len(mean or ()) != len(std or ()):
            raise ValueError(f"`mean` and `std` must have one number per channel each, got {mean} and {std}")
        self.train_set: Any = train
        self.test_set: Any = test
        self.batch_size, self.seed, self.num_workers = batch_size, seed, num_workers
        self.test_batch_size = batch_size if test_batch_size is None else test_batch_size
        self.transform, self.mean, self.std, self.num_classes = transform, mean, std, num_classes
        self._indices: list[Tensor] = []  # empty until the data is loaded
        # a stream's last task: training samples, test samples, training samples as in the task before if they drift
        self._task: tuple[int, TensorDataset, TensorDataset, Samples | None] | None = None

    def load(self) -> tuple[Dataset[Any], Dataset[Any]]:
        """Return the training set and the test set; called once per process, before training or testing."""
        for name, dataset in (("train", self.train_set), ("test", self.test_set)):
            if not hasattr(dataset, "__getitem__") or isinstance(dataset, IterableDataset):
                raise ValueError(f"`{name}` must be a map-style data set (__getitem__ and __len__), got {dataset!r}")
        return self.train_set, self.test_set

    @property
    def online(self) -> bool:
        """True if the metric is the accuracy or the error during training, as on streams."""
        return self.protocol.online

    @property
    def seen_classes(self) -> Tensor | None:
        """Classes seen up to the current chunk, ascending, int64; None if all are present from the start."""
        return self.protocol.classes(self.num_classes, self.seed)[self.chunk]

    def train_indices(self, chunk: int) -> Tensor:
        """Return the indices of the training samples of a chunk, int64 (n,); loads the data if necessary."""
        self._load_once()
        return self._indices[chunk]

    def datasets(self, chunk: int) -> tuple[Dataset[Any], Dataset[Any]]:
        """Return the training and the test samples of a chunk; loads the data if necessary."""
        indices = self.train_indices(chunk)
        if not isinstance(self.protocol, Stream):
            if is_tensors(self.train_set):
                return TensorSubset(self.train_set, indices), self.test_set
            return Subset(self.train_set, indices.tolist()), self.test_set
        if self._task is None or self._task[0] != chunk:
            for name, dataset in (("train", self.train_set), ("test", self.test_set)):
                if not is_tensors(dataset) or len(dataset.tensors) != 2:
                    raise ValueError(f"`{name}` must be a TensorDataset of inputs and targets on a stream: {dataset}")
            inputs, targets = TensorSubset(self.train_set, indices)[:]
            drawn, tests, old = (inputs, targets), self.test_set.tensors, None
            train, test = self.protocol.task(chunk, drawn, tests, self.num_classes, self.seed)
            if self.protocol.drift and chunk:
                old, _ = self.protocol.task(chunk - 1, drawn, tests, self.num_classes, self.seed)
            self._task = chunk, TensorDataset(*train), TensorDataset(*test), old
        return self._task[1:3]

    def train_samples(self, epoch: int) -> Dataset[Any]:
        """Return the training samples of an epoch: those of its chunk, on a stream with a `drift` as changed by then.

        Each sample changes at the time of its batch in the epoch, so they are a pure function of seed and epoch.
        """
        chunk = self.chunk_at(epoch)
        train = self.datasets(chunk)[0]
        if not isinstance(self.protocol, Stream) or self._task is None or (old := self._task[3]) is None:
            return train
        sampler = EpochSampler(train, seed=self.seed, num_replicas=1, rank=0)
        sampler.set_epoch(epoch)
        place = sampler.order().argsort()  # time of each sample in the epoch, (n,)
        done = epoch - self.first_epoch(chunk) + place / len(place)  # epochs of the task before it
        progress = done / self.epochs_per_chunk[chunk]
        return TensorDataset(*self.protocol.drifted(chunk, progress, old, train[:], self.seed))

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Normalize the images (B, C, H, W), the first entry of a batch, as floats; other batches are unchanged."""
        if not isinstance(batch, tuple | list) or not isinstance(batch[0], Tensor) or batch[0].ndim < 3:
            return batch
        images = normalize(batch[0], self.mean, self.std)
        if self.trainer is not None:
            images = self.trainer.precision_plugin.convert_input(images)  # Lightning converted before they were floats
        return [images, *batch[1:]]

    def _load_once(self) -> None:
        if self._indices:
            return
        self.train_set, self.test_set = self.load()
        labels = labels_of(self.train_set) if self.protocol.by_class or self.num_classes is None else None
        if labels is None and self.protocol.by_class:
            raise ValueError(
                f"`train` must show its labels to {type(self.protocol).__name__}, whole numbers (N,): as the second"
                " tensor of a TensorDataset, or an attribute `targets` or `labels`;"
                f" {type(self.train_set).__name__} has none"
            )
        if labels is None:
            labels = torch.zeros(len(self.train_set), dtype=torch.int64)  # only their number counts
        elif self.num_classes is None and len(labels):
            self.num_classes = int(labels.max()) + 1
        self._indices = self.protocol.indices(labels, self.num_classes, self.seed)

    @property
    def _test_changes(self) -> bool:
        return self.online

    def _batches_in(self, chunk: int) -> int:
        return num_batches(len(self.train_indices(chunk)), self.batch_size, world_size())

    @property
    def _drifts(self) -> bool:
        return isinstance(self.protocol, Stream) and self.protocol.drift > 0

    @property
    def _part(self) -> int:
        return self._epoch if self._drifts else super()._part

    def _make_train_loader(self, chunk: int) -> ResumableLoader:
        dataset = self.train_samples(self._epoch) if self._drifts else self.datasets(chunk)[0]
        dataset = dataset if self.transform is None else Transformed(dataset, self.transform)
        return self._loader(dataset, self.batch_size, shuffle=True)

    def _make_test_loader(self, chunk: int) -> ResumableLoader:
        return self._loader(self.datasets(chunk)[1], self.test_batch_size, shuffle=False)

    def _loader(self, dataset: Dataset[Any], batch_size: int, shuffle: bool) -> ResumableLoader:
        if is_tensors(dataset):
            dataset = TensorSubset(dataset, torch.arange(len(dataset)))
        by_batch = isinstance(dataset, TensorSubset)
        return ResumableLoader(dataset, batch_size, by_batch, shuffle, self.seed, 0 if by_batch else self.num_workers)
