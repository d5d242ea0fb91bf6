"""Online accuracy: counts over batches and ranks."""

import pytest
import torch
from torchmetrics.classification import MulticlassAccuracy

from lightning_fire.metrics import OnlineAccuracy


def test_equals_torchmetrics_accuracy_over_batches_of_any_sizes():
    logits, labels = torch.randn(50, 7), torch.randint(7, (50,))
    logits[:5] = 1.0  # ties: the first class counts
    accuracy, oracle = OnlineAccuracy(), MulticlassAccuracy(7, average="micro")
    for part, of in zip(logits.split([1, 9, 40]), labels.split([1, 9, 40]), strict=True):
        accuracy.update(part, of)
        oracle.update(part, of)
    assert accuracy.compute() == oracle.compute()
    accuracy.reset()
    assert accuracy.correct == accuracy.samples == 0


def test_counts_are_summed_over_ranks():
    """The other rank has 3 of 4 samples right."""
    others = iter([torch.tensor(3), torch.tensor(4)])
    options = {"dist_sync_fn": lambda own, group: [own, next(others)], "distributed_available_fn": lambda: True}
    accuracy = OnlineAccuracy(**options)
    accuracy.update(torch.eye(2), torch.tensor([0, 0]))
    assert accuracy.compute() == pytest.approx(4 / 6)
