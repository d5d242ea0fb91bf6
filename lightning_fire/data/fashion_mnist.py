"""Fashion-MNIST: the whole data set, or a part that comes with this package."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, TensorDataset
from torchvision.datasets import FashionMNIST
from torchvision.datasets.mnist import read_image_file, read_label_file

from lightning_fire.data.chunked import ChunkedDataModule
from lightning_fire.data.file_errors import damaged, require_file

_MEAN, _STD = (0.2860,), (0.3530,)  # of the 60,000 training images


class FashionMNISTDataModule(ChunkedDataModule):
    """Fashion-MNIST: 60,000 training and 10,000 test images, uint8 (1, 28, 28), 10 classes.

    Args:
        root: Folder of `FashionMNIST/raw`.
        download: Download missing files.
        subset: Number of training images, the first of a fixed seeded permutation; None: all. The test set stays whole.
        pad: Black pixels on each side of an image: with 2 it is (1, 32, 32), the size for networks for CIFAR-10.
        **options: `protocol`, `batch_size`, `test_batch_size`, `seed`, `num_workers` and `transform` of
            `ChunkedDataModule`.

    Raises:
        ValueError: If `subset` is below 1, or above the size of the set (when the data is loaded); if `pad` is below 0.
    """

    def __init__(
        self, root: str = "data", download: bool = False, subset: int | None = None, pad: int = 0, **options: Any
    ):
        super().__init__(train=None, test=None, mean=_MEAN, std=_STD, num_classes=10, **options)
        if subset is not None and subset < 1:
            raise ValueError(f"`subset` must be at least 1, or None for all, got {subset}")
        if pad < 0:
            raise ValueError(f"`pad` must be at least 0, got {pad}")
        self.root, self.download, self.subset, self.pad = root, download, subset, pad

    def prepare_data(self) -> None:
        """Download the files if asked to; Lightning calls this in one process only."""
        if self.download:
            FashionMNIST(self.root, download=True)

    def load(self) -> tuple[Dataset, Dataset]:
        """Return the training set and the test set.

        Raises:
            FileNotFoundError: If a file is missing.
            RuntimeError: If a file is truncated or not of its format.
        """
        train, test = self._read("train"), self._read("t10k")
        if self.subset is None:
            return train, test
        if (n := len(train)) < self.subset:
            raise ValueError(f"`subset` must not exceed the number of training images ({n}), got {self.subset}")
        order = torch.randperm(n, generator=torch.Generator().manual_seed(0))  # the same in each run
        return TensorDataset(*train[order[: self.subset]]), test

    def _read(self, part: str) -> TensorDataset:
        folder, tensors = Path(self.root) / "FashionMNIST" / "raw", []
        for name, read in (("images-idx3", read_image_file), ("labels-idx1", read_label_file)):
            path = folder / f"{part}-{name}-ubyte"
            require_file(path, type(self).__name__)
            try:
                tensors.append(read(str(path)))
            except Exception as error:  # of any type, by torchvision
                raise damaged(path, error) from error
        images, labels = tensors
        return TensorDataset(torch.nn.functional.pad(images.unsqueeze(1), [self.pad] * 4), labels)


class SmallFashionMNISTDataModule(ChunkedDataModule):
    """10,000 training and 2,000 test images of Fashion-MNIST, the same number of each class; no download.

    Drawn at random, with a fixed seed, from the official training and test sets. For experiments on a CPU: on this data
    set a warm start already ends below training from scratch.

    Args:
        **options: `protocol`, `batch_size`, `test_batch_size`, `seed`, `num_workers` and `transform` of
            `ChunkedDataModule`.
    """

    def __init__(self, **options: Any):
        super().__init__(train=None, test=None, mean=_MEAN, std=_STD, num_classes=10, **options)

    def load(self) -> tuple[Dataset, Dataset]:
        """Return the training set and the test set."""
        with np.load(Path(__file__).with_name("fashion_mnist_small.npz"), allow_pickle=False) as arrays:
            pairs = ((arrays[f"{part}_images"], arrays[f"{part}_labels"]) for part in ("train", "test"))
            tensors = ((torch.from_numpy(images), torch.from_numpy(labels)) for images, labels in pairs)
            return tuple(TensorDataset(images.unsqueeze(1), labels.to(torch.int64)) for images, labels in tensors)
