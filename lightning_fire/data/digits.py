"""Handwritten digits: real images that come with scikit-learn and need no file."""

from typing import Any

import torch
from torch.utils.data import Dataset, TensorDataset

from lightning_fire.data.chunked import ChunkedDataModule


class DigitsDataModule(ChunkedDataModule):
    """scikit-learn's 1,797 grey 8×8 digits in 10 classes: 1,500 to train on and 297 to test, by a fixed seeded split.

    For quick checks only: a warm start does not reduce the accuracy on this data set.

    Args:
        **options: `protocol`, `batch_size`, `seed`, `num_workers` and `transform` of `ChunkedDataModule`.
    """

    def __init__(self, **options: Any):
        super().__init__(train=None, test=None, mean=(0.3051,), std=(0.3757,), num_classes=10, **options)

    def load(self) -> tuple[Dataset, Dataset]:
        """Return the training set and the test set.

        Raises:
            ImportError: If scikit-learn is not installed.
        """
        try:
            from sklearn.datasets import load_digits
        except ImportError as error:
            raise ImportError("DigitsDataModule needs scikit-learn: pip install scikit-learn") from error
        pixels, labels = load_digits(return_X_y=True)
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))  # the same in each run
        images = (torch.from_numpy(pixels) * (255 / 16)).round().to(torch.uint8).view(-1, 1, 8, 8)[order]
        labels = torch.from_numpy(labels).to(torch.int64)[order]
        return TensorDataset(images[:1500], labels[:1500]), TensorDataset(images[1500:], labels[1500:])
