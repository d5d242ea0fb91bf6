"""CIFAR-10 and CIFAR-100, read by torchvision, which checks each file against its known sum before unpickling it."""

from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset, TensorDataset
from torchvision.datasets import CIFAR10, CIFAR100
from torchvision.datasets.utils import check_integrity

from lightning_fire.data.chunked import ChunkedDataModule
from lightning_fire.data.file_errors import damaged, require_file


class CIFAR10DataModule(ChunkedDataModule):
    """CIFAR-10: 50,000 training and 10,000 test images, uint8 (3, 32, 32), 10 classes.

    Args:
        root: Folder of `cifar-10-batches-py`.
        download: Download missing files.
        **options: `protocol`, `batch_size`, `seed`, `num_workers` and `transform` of `ChunkedDataModule`.
    """

    source = CIFAR10
    num_source_classes = 10
    channels = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))  # means and standard deviations

    def __init__(self, root: str = "data", download: bool = False, **options: Any):
        mean, std = self.channels
        super().__init__(train=None, test=None, mean=mean, std=std, num_classes=self.num_source_classes, **options)
        self.root, self.download = root, download

    def prepare_data(self) -> None:
        """Download the files if asked to; Lightning calls this in one process only."""
        if self.download:
            self.source(self.root, download=True)

    def load(self) -> tuple[Dataset, Dataset]:
        """Return the training set and the test set.

        Raises:
            FileNotFoundError: If a file is missing.
            RuntimeError: If a file is not the published one.
        """
        source, folder = self.source, Path(self.root) / self.source.base_folder
        for name, md5 in (*source.train_list, *source.test_list, (source.meta["filename"], source.meta["md5"])):
            require_file(folder / name, type(self).__name__)
            if not check_integrity(folder / name, md5):
                raise damaged(folder / name, f"its MD5 sum is not {md5}")
        return tuple(
            TensorDataset(
                torch.from_numpy(part.data).permute(0, 3, 1, 2).contiguous(),  # (N, 3, 32, 32)
                torch.tensor(part.targets, dtype=torch.int64),
            )
            for part in (source(self.root, train=True), source(self.root, train=False))
        )


class CIFAR100DataModule(CIFAR10DataModule):
    """CIFAR-100: 50,000 training and 10,000 test images, uint8 (3, 32, 32), 100 classes.

    Args:
        root: Folder of `cifar-100-python`.
        download: Download missing files.
        **options: `protocol`, `batch_size`, `seed`, `num_workers` and `transform` of `ChunkedDataModule`.
    """

    source = CIFAR100
    num_source_classes = 100
    # of the training images, for the test images too; the authors' code has an error here
    channels = ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
