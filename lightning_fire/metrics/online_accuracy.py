"""Accuracy of a network on data that it is about to be trained on."""

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric


class OnlineAccuracy(Metric):
    """Accuracy of each batch before the update with it, averaged over all samples since the last reset.

    The standard metric of streams (Dohare et al., Nature 2024; Kumar et al., CoLLAs 2024): reset it at the start of a
    task, update it with the predictions of the training step. `compute` returns a float32 scalar in [0, 1], NaN without
    samples. Cheaper than torchmetrics' `MulticlassAccuracy`, which checks and sorts its inputs: for a small network
    that takes a tenth of a training step.

    Example:
        >>> accuracy = OnlineAccuracy()
        >>> accuracy.update(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1]))
        >>> accuracy.compute()
        tensor(0.5000)
    """

    full_state_update = False
    higher_is_better = True
    is_differentiable = False
    correct: Tensor
    samples: Tensor

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.add_state("correct", torch.tensor(0), dist_reduce_fx="sum")
        self.add_state("samples", torch.tensor(0), dist_reduce_fx="sum")

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Add a batch: logits `(batch, num_classes)` and labels int64 `(batch,)`."""
        self.correct += (logits.argmax(dim=1) == labels).sum()
        self.samples += len(labels)

    def compute(self) -> Tensor:
        """Return the accuracy over all samples since the last reset."""
        return self.correct / self.samples
