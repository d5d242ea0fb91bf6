"""The image sets of the paper, and smaller ones, in chunks."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar
from zipfile import ZipFile

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.data import TensorDataset
from torchvision.datasets import CIFAR10, CIFAR100, FashionMNIST, VisionDataset
from torchvision.datasets.utils import check_integrity, download_url

from lightning_fire.data.chunked import ChunkedDataModule

Sets = tuple[TensorDataset, TensorDataset]  # training and test images, uint8 (N, C, H, W), and labels, int64 (N,)
_FASHION = (0.2860,), (0.3530,)  # mean and standard deviation of the 60,000 training images
_TINY = "tiny-imagenet-200"


class TorchvisionDataModule(ChunkedDataModule):
    """Base class of image sets in files, read and checked by torchvision."""

    source: ClassVar[type[VisionDataset]]
    classes: ClassVar[int]
    mean_and_std: ClassVar[tuple[tuple[float, ...], tuple[float, ...]]]  # of each channel

    def __init__(self, root: str = "data", download: bool = False, **options: Any):
        mean, std = self.mean_and_std
        super().__init__(train=None, test=None, mean=mean, std=std, num_classes=self.classes, **options)
        self.root, self.download = root, download

    def prepare_data(self) -> None:
        """Download the files if asked to; Lightning calls this in one process only."""
        if self.download:
            self.source(self.root, download=True)

    def load(self) -> Sets:
        """Return the training set and the test set.

        Raises:
            RuntimeError: If a file is missing, truncated or not the published one.
        """
        try:
            train, test = (self.source(self.root, train=train) for train in (True, False))
        except Exception as error:  # of any type
            raise self._not_found(error) from error
        return TensorDataset(*self._tensors(train)), TensorDataset(*self._tensors(test))

    def _tensors(self, part: VisionDataset) -> tuple[Tensor, Tensor]:
        images = torch.from_numpy(part.data).permute(0, 3, 1, 2).contiguous()  # (N, 3, 32, 32)
        return images, torch.tensor(part.targets, dtype=torch.int64)

    def _not_found(self, reason: object) -> RuntimeError:
        return RuntimeError(
            f"{type(self).__name__} misses whole files in {Path(self.root).absolute()} ({reason}): delete damaged ones,"
            " and set download=True or put the files there"
        )


class CIFAR10DataModule(TorchvisionDataModule):
    """CIFAR-10: 50,000 training and 10,000 test images, uint8 (3, 32, 32), 10 classes.

    Args:
        root: Folder of `cifar-10-batches-py`, whose files are checked by their MD5 sums before they are unpickled.
        download: Download missing files.
        **options: `protocol`, `batch_size`, `seed`, `num_workers` and `transform` of `ChunkedDataModule`.
    """

    source, classes = CIFAR10, 10
    mean_and_std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


class CIFAR100DataModule(TorchvisionDataModule):
    """CIFAR-100: 50,000 training and 10,000 test images, uint8 (3, 32, 32), 100 classes.

    Args:
        root: Folder of `cifar-100-python`, whose files are checked by their MD5 sums before they are unpickled.
        download: Download missing files.
        **options: `protocol`, `batch_size`, `seed`, `num_workers` and `transform` of `ChunkedDataModule`.
    """

    source, classes = CIFAR100, 100
    # of the training images, used for the test images too; the authors' code has an error here
    mean_and_std = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)


class FashionMNISTDataModule(TorchvisionDataModule):
    """Fashion-MNIST: 60,000 training and 10,000 test images, uint8 (1, 28, 28), 10 classes.

    Args:
        root: Folder of `FashionMNIST/raw`.
        download: Download missing files.
        subset: Number of training images, the first of a fixed seeded permutation; None: all. The test set is not
            reduced.
        pad: Black pixels on each side of an image: with 2 it is (1, 32, 32), the size for networks for CIFAR-10.
        **options: `protocol`, `batch_size`, `test_batch_size`, `seed`, `num_workers` and `transform` of
            `ChunkedDataModule`.

    Raises:
        ValueError: If `subset` is below 1, or above the size of the set (when the data is loaded); if `pad` is below 0.
    """

    source, classes, mean_and_std = FashionMNIST, 10, _FASHION

    def __init__(
        self, root: str = "data", download: bool = False, subset: int | None = None, pad: int = 0, **options: Any
    ):
        super().__init__(root, download, **options)
        if subset is not None and subset < 1:
            raise ValueError(f"`subset` must be at least 1, or None for all, got {subset}")
        if pad < 0:
            raise ValueError(f"`pad` must be at least 0, got {pad}")
        self.subset, self.pad = subset, pad

    def load(self) -> Sets:
        """Return the training set and the test set."""
        train, test = super().load()
        if self.subset is None:
            return train, test
        if (n := len(train)) < self.subset:
            raise ValueError(f"`subset` must not exceed the number of training images ({n}), got {self.subset}")
        order = torch.randperm(n, device="cpu", generator=torch.Generator().manual_seed(0))
        return TensorDataset(*train[order[: self.subset]]), test

    def _tensors(self, part: VisionDataset) -> tuple[Tensor, Tensor]:
        return pad(part.data.unsqueeze(1), [self.pad] * 4), part.targets


class SmallFashionMNISTDataModule(ChunkedDataModule):
    """10,000 training and 2,000 test images of Fashion-MNIST, the same number of each class; no download.

    Drawn at random, with a fixed seed, from the official training and test sets. For experiments on a CPU: on this data
    set a warm start is already worse than training from scratch.

    Args:
        **options: `protocol`, `batch_size`, `test_batch_size`, `seed`, `num_workers` and `transform` of
            `ChunkedDataModule`.
    """

    def __init__(self, **options: Any):
        mean, std = _FASHION
        super().__init__(train=None, test=None, mean=mean, std=std, num_classes=10, **options)

    def load(self) -> Sets:
        """Return the training set and the test set."""
        with np.load(Path(__file__).with_name("fashion_mnist_small.npz"), allow_pickle=False) as arrays:
            tensors = {name: torch.from_numpy(arrays[name]) for name in arrays}
        train, test = (
            TensorDataset(tensors[f"{part}_images"].unsqueeze(1), tensors[f"{part}_labels"].to(torch.int64))
            for part in ("train", "test")
        )
        return train, test


class TinyImageNetDataModule(TorchvisionDataModule):
    """Tiny ImageNet: 100,000 training and 10,000 test images (its validation set), uint8 (3, 64, 64), 200 classes.

    Read directly from the original zip file. Classes are numbered by sorted WordNet ids, as in torchvision's
    `ImageFolder`. Grey images become RGB. All images are decoded into memory (1.4 GB) when training starts.

    Args:
        root: Folder of `tiny-imagenet-200.zip`.
        download: Download the file if it is missing.
        **options: `protocol`, `batch_size`, `seed`, `num_workers` and `transform` of `ChunkedDataModule`.
    """

    url = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
    md5: str | None = "90528d7ca1a48142e341f4ef8d21d0de"
    classes, mean_and_std = 200, ((0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821))

    def prepare_data(self) -> None:
        """Download the file if asked to and missing; raise a `RuntimeError` if it is not the published one."""
        if self.download:
            download_url(self.url, self.root, f"{_TINY}.zip", md5=self.md5)

    def load(self) -> Sets:
        """Return the training set and the test set.

        Raises:
            RuntimeError: If the zip file is missing or not the published one.
        """
        path = Path(self.root, f"{_TINY}.zip")
        if not check_integrity(path, self.md5):
            raise self._not_found(f"{path.name}, MD5 sum {self.md5}")
        with ZipFile(path) as archive:
            train, val = _listed(archive)
            return _decode(archive, train), _decode(archive, val)


def _listed(archive: ZipFile) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """Return the member and class of each training image and of each validation image, from the archive's lists."""

    def lines(member: str) -> list[list[str]]:
        return [line.split() for line in archive.read(f"{_TINY}/{member}").decode().splitlines() if line.strip()]

    number = {wnid: i for i, wnid in enumerate(sorted(words[0] for words in lines("wnids.txt")))}
    train = [
        (f"{_TINY}/train/{wnid}/images/{words[0]}", number[wnid])
        for wnid in number
        for words in lines(f"train/{wnid}/{wnid}_boxes.txt")
    ]
    return train, [(f"{_TINY}/val/images/{words[0]}", number[words[1]]) for words in lines("val/val_annotations.txt")]


def _decode(archive: ZipFile, entries: Sequence[tuple[str, int]]) -> TensorDataset:
    images = np.empty((len(entries), 3, 64, 64), dtype=np.uint8)

    def decode(i: int) -> None:
        with Image.open(BytesIO(archive.read(entries[i][0]))) as image:
            images[i] = np.asarray(image.convert("RGB")).transpose(2, 0, 1)  # (64, 64, 3) to (3, 64, 64)

    with ThreadPoolExecutor() as pool:
        list(pool.map(decode, range(len(entries))))  # raises the first error
    return TensorDataset(torch.from_numpy(images), torch.tensor([label for _, label in entries], dtype=torch.int64))
