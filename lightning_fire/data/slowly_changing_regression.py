"""Data of slowly-changing regression, generated in memory."""

from typing import Any, ClassVar

import torch
from torch.utils.data import TensorDataset

from lightning_fire.data.chunked import ChunkedDataModule
from lightning_fire.data.streams import SlowlyChangingRegression


class SlowlyChangingRegressionDataModule(ChunkedDataModule):
    """Samples of `SlowlyChangingRegression`: inputs float32 (bits,) of 0 and 1, targets float32 (1,).

    Args:
        protocol: The stream.
        test_size: Validation samples of each task.
        **options: `batch_size`, `test_batch_size` and `seed` of `ChunkedDataModule`.
    """

    report: ClassVar[str] = "loss"

    def __init__(
        self,
        protocol: SlowlyChangingRegression = SlowlyChangingRegression(),  # noqa: B008 - frozen
        test_size: int = 1000,
        **options: Any,
    ):
        super().__init__(None, None, protocol, mean=None, std=None, num_classes=None, **options)
        if test_size < 1:
            raise ValueError(f"`test_size` must be at least 1, got {test_size}")
        self.test_size = test_size

    def load(self) -> tuple[TensorDataset, TensorDataset]:
        """Return zeros for the samples of a task: the protocol draws its own samples."""
        stream: Any = self.protocol
        train, test = torch.zeros(stream.samples_per_task, 1), torch.zeros(self.test_size, 1)
        return TensorDataset(train, train), TensorDataset(test, test)
