"""Stable rank of features."""

from torch import Tensor

from lightning_fire.functional import stable_rank_of
from lightning_fire.metrics.feature_rank import FeatureRank


class StableRank(FeatureRank):
    """Stable rank ‖F‖_F² / σ_max² of features, streamed in batches; see `lightning_fire.functional.stable_rank`.

    `update` takes features of shape `(..., num_features)`; all other dimensions count as samples. `compute` returns a
    float64 scalar in [1, num_features], 0 for features of zeros, NaN after a NaN or Inf.

    Args:
        num_features: Size of the last dimension of the features, at least 1.
        **kwargs: Of `torchmetrics.Metric`.

    Raises:
        ValueError: If `num_features` is below 1.

    Example:
        >>> import torch
        >>> metric = StableRank(num_features=2)
        >>> metric.update(torch.tensor([[2.0, 0.0]]))
        >>> metric.update(torch.tensor([[0.0, 1.0]]))
        >>> metric.compute()
        tensor(1.2500, dtype=torch.float64)
    """

    def rank(self, singular_values: Tensor) -> Tensor:
        """Return the stable rank."""
        return stable_rank_of(singular_values)
