"""Shift of the features of the same samples between two networks."""

import math
from typing import Any

from torch import Tensor

from lightning_fire.functional import feature_covariance_shift_of
from lightning_fire.functional.checks import at_least
from lightning_fire.metrics.sums import Sums


class FeatureCovarianceShift(Sums):
    """‖C − C̃‖_F of features before and after a change; see `lightning_fire.functional.feature_covariance_shift`.

    `update` takes features `(..., num_features)` of the same samples before and after, for instance of a network before
    and after its reinitialization; all dimensions but the last count as samples. `compute` returns a float64 scalar in
    [0, √2], where a value below about 1e-8 may be 0. Memory is that of three matrices `(num_features, num_features)`.

    Args:
        num_features_before: Size of the last dimension before, at least 1.
        num_features_after: Size of the last dimension after, at least 1. Default: `num_features_before`.

    Example:
        >>> import torch
        >>> metric = FeatureCovarianceShift(num_features_before=1)
        >>> metric.update(torch.tensor([[1.0]]), torch.tensor([[0.0]]))
        >>> metric.update(torch.tensor([[0.0]]), torch.tensor([[3.0]]))
        >>> metric.compute()
        tensor(1.4142, dtype=torch.float64)
    """

    plot_upper_bound = math.sqrt(2)
    gram_before: Tensor
    gram_after: Tensor
    cross: Tensor

    def __init__(self, num_features_before: int, num_features_after: int | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        after = num_features_before if num_features_after is None else num_features_after
        at_least(1, num_features_before=num_features_before, num_features_after=after)
        self.num_features_before, self.num_features_after = num_features_before, after
        self.add_sum("gram_before", num_features_before, num_features_before)
        self.add_sum("gram_after", after, after)
        self.add_sum("cross", num_features_before, after)

    def update(self, before: Tensor, after: Tensor) -> None:
        """Add features of the same samples before, `(..., num_features_before)`, and after."""
        if before.shape[:-1] != after.shape[:-1]:
            shapes = f"{tuple(before.shape)} and {tuple(after.shape)}"
            raise ValueError(f"`before` and `after` must be features of the same samples, got {shapes}")
        before = self.rows(before, self.num_features_before, "before")
        after = self.rows(after, self.num_features_after, "after")
        self.add(before.mT @ before, after.mT @ after, before.mT @ after)

    def compute(self) -> Tensor:
        """Return the shift on all samples since the last reset."""
        return feature_covariance_shift_of(self.gram_before, self.gram_after, self.cross)
