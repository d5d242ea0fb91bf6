"""How far features of the same samples have moved."""

import math
from typing import Any

from torch import Tensor

from lightning_fire.functional import feature_covariance_shift_of
from lightning_fire.metrics.sums import Sums, positive_count


class FeatureCovarianceShift(Sums):
    """‖C − C̃‖_F of the features of all samples it was given; see `lightning_fire.functional.feature_covariance_shift`.

    `update` takes features `(..., num_features)` of the same samples before and after, from a network and its
    reinitialised self for instance; all dimensions but the last count as samples. `compute` returns a float64 scalar in
    [0, √2]; below about 1e-8 it cannot be told from 0. Memory is that of three matrices of features by features.

    Args:
        num_features_before: Size of the last dimension before, at least 1.
        num_features_after: Likewise after. Default: as before.
        **kwargs: Of `torchmetrics.Metric`.

    Raises:
        ValueError: If a number is below 1.

    Example:
        >>> import torch
        >>> metric = FeatureCovarianceShift(num_features_before=1)
        >>> metric.update(torch.tensor([[1.0]]), torch.tensor([[0.0]]))
        >>> metric.update(torch.tensor([[0.0]]), torch.tensor([[3.0]]))
        >>> metric.compute()
        tensor(1.4142, dtype=torch.float64)
    """

    higher_is_better = False
    plot_upper_bound = math.sqrt(2)
    gram_before: Tensor
    gram_after: Tensor
    cross: Tensor

    def __init__(self, num_features_before: int, num_features_after: int | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        after = num_features_before if num_features_after is None else num_features_after
        self.num_features_before = positive_count(num_features_before, "num_features_before")
        self.num_features_after = positive_count(after, "num_features_after")
        self.add_sum("gram_before", num_features_before, num_features_before)
        self.add_sum("gram_after", after, after)
        self.add_sum("cross", num_features_before, after)

    def update(self, before: Tensor, after: Tensor) -> None:
        """Add features of the same samples before, `(..., num_features_before)`, and after."""
        if before.shape[:-1] != after.shape[:-1]:
            raise ValueError(
                f"`before` and `after` must be features of the same samples, got {tuple(before.shape)} and"
                f" {tuple(after.shape)}"
            )
        before = self.rows(before, self.num_features_before, "before")
        after = self.rows(after, self.num_features_after, "after")
        self.gram_before = self.gram_before + before.mT @ before
        self.gram_after = self.gram_after + after.mT @ after
        self.cross = self.cross + before.mT @ after

    def compute(self) -> Tensor:
        """Return the shift on all samples so far."""
        return feature_covariance_shift_of(self.gram_before, self.gram_after, self.cross)
