"""The loss of an epoch."""

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric


class MeanLoss(Metric):
    """Mean of a loss over all samples of all batches and ranks; `samples_of_all` is their number.

    torchmetrics' `MeanMetric` waits for the GPU at each update to check for NaN and, with that check off, ignores the
    weights (1.9). Here a NaN results in NaN.
    """

    full_state_update = False
    is_differentiable = False
    total: Tensor
    samples: Tensor

    def __init__(self, **options: Any):
        super().__init__(**options)
        self.add_state("total", torch.tensor(0.0), dist_reduce_fx="sum")
        self.add_state("samples", torch.tensor(0), dist_reduce_fx="sum")
        self.samples_of_all = 0

    def update(self, loss: Tensor, samples: int) -> None:
        """Add the mean loss of a batch, a scalar, and the size of the batch."""
        self.total += loss.detach().to(self.total.dtype) * samples
        self.samples += samples

    def compute(self) -> Tensor:
        """Return the mean, a scalar."""
        self.samples_of_all = int(self.samples)
        return self.total / self.samples
