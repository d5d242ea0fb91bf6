"""Entropy rank of features (Roy and Vetterli, EUSIPCO 2007)."""

from torch import Tensor

from lightning_fire.functional import entropy_rank_of
from lightning_fire.metrics.feature_rank import FeatureRank


class EntropyRank(FeatureRank):
    """exp of the entropy of σ / Σσ of features, streamed in batches; see `lightning_fire.functional.entropy_rank`.

    `update` takes features of shape `(..., num_features)`; all other dimensions count as samples. `compute` returns a
    float64 scalar in [1, num_features], 0 for features of zeros, NaN after a NaN or Inf.

    Args:
        num_features: Size of the last dimension of the features, at least 1.
        **kwargs: Of `torchmetrics.Metric`.

    Raises:
        ValueError: If `num_features` is below 1.

    Example:
        >>> import torch
        >>> metric = EntropyRank(num_features=2)
        >>> metric.update(torch.tensor([[2.0, 0.0]]))
        >>> metric.update(torch.tensor([[0.0, 2.0]]))
        >>> metric.compute().round(decimals=4)
        tensor(2., dtype=torch.float64)
    """

    def rank(self, singular_values: Tensor) -> Tensor:
        """Return the entropy rank."""
        return entropy_rank_of(singular_values)
