"""Handwritten digits: real images that come with scikit-learn and need no file."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import Dataset, TensorDataset

from lightning_fire.data.chunked import ChunkedDataModule
from lightning_fire.data.chunks import Protocol, warm_start

_TEST_SIZE = 297
_SPLIT_SEED = 0  # the split is part of the data set, not of a run


class DigitsDataModule(ChunkedDataModule):
    """scikit-learn's 1,797 grey 8×8 digits in 10 classes: 1,500 to train on and 297 to test, by a fixed seeded split.

    For quick checks: a warm start does no harm on this data set, so it shows nothing about plasticity.

    Args:
        protocol: How the data arrives.
        batch_size: Samples in a batch, per device.
        seed: Seed of the split into chunks and of the order of the batches.
        num_workers: Worker processes, used with `transform` only.
        transform: Augmentation of one training image, uint8 (1, 8, 8).
    """

    def __init__(
        self,
        protocol: Protocol = warm_start,
        batch_size: int = 256,
        seed: int = 0,
        num_workers: int = 0,
        transform: Callable[[Any], Any] | None = None,
    ):
        super().__init__(
            protocol=protocol,
            batch_size=batch_size,
            seed=seed,
            num_workers=num_workers,
            transform=transform,
            mean=(0.3051,),
            std=(0.3757,),
            num_classes=10,
        )

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
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(_SPLIT_SEED))
        images = (torch.from_numpy(pixels) * (255 / 16)).round().to(torch.uint8).view(-1, 1, 8, 8)[order]
        labels = torch.from_numpy(labels).to(torch.int64)[order]
        return (
            TensorDataset(images[:-_TEST_SIZE], labels[:-_TEST_SIZE]),
            TensorDataset(images[-_TEST_SIZE:], labels[-_TEST_SIZE:]),
        )
