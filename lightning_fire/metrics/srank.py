"""Effective rank of features (Kumar et al., ICLR 2021)."""

from typing import Any

from torch import Tensor

from lightning_fire.functional import srank_of
from lightning_fire.metrics.feature_rank import FeatureRank


class SRank(FeatureRank):
    """Effective rank of features, streamed in batches; see `lightning_fire.functional.srank`.

    `update` takes features of shape `(..., num_features)`; all other dimensions count as samples. `compute` returns a
    whole number as a float64 scalar in [0, num_features], NaN after a NaN or Inf.

    Args:
        num_features: Size of the last dimension of the features, at least 1.
        delta: δ, the share of the sum of singular values that may be missing, in [0, 1).
        **kwargs: Of `torchmetrics.Metric`.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> import torch
        >>> metric = SRank(num_features=3)
        >>> metric.update(torch.tensor([[5.0, 0.0, 0.0]]))
        >>> metric.update(torch.tensor([[0.0, 5.0, 0.0], [0.0, 0.0, 0.01]]))
        >>> metric.compute()
        tensor(2., dtype=torch.float64)
    """

    def __init__(self, num_features: int, delta: float = 0.01, **kwargs: Any):
        super().__init__(num_features, **kwargs)
        if not 0 <= delta < 1:
            raise ValueError(f"`delta` must be at least 0 and below 1, got {delta}")
        self.delta = delta

    def rank(self, singular_values: Tensor) -> Tensor:
        """Return the effective rank."""
        return srank_of(singular_values, self.delta)
