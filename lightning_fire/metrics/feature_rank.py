"""What the ranks of features have in common."""

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from lightning_fire.functional import singular_values_of_gram
from lightning_fire.metrics.sums import Sums, positive_count


class FeatureRank(Sums):
    """A rank of the features of all samples it was given, from the sum of FᵀF over batches.

    Memory is num_features², whatever the number of samples. In a `MetricCollection` all ranks of the same features
    share that sum. Squaring costs digits: singular values below about √num_features · 1e-8 σ_max count as 0.

    Args:
        num_features: Size of the last dimension of the features, at least 1.
        **kwargs: Of `torchmetrics.Metric`.

    Raises:
        ValueError: If `num_features` is below 1.
    """

    higher_is_better = True
    gram: Tensor

    def __init__(self, num_features: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.num_features = positive_count(num_features, "num_features")
        self.add_sum("gram", num_features, num_features)

    def update(self, features: Tensor) -> None:
        """Add features of samples, `(..., num_features)`: all dimensions but the last count as samples."""
        features = self.rows(features, self.num_features, "features")
        self.gram = self.gram + features.mT @ features

    def compute(self) -> Tensor:
        """Return the rank of all features so far; NaN if one of them was NaN or Inf, 0 if all were 0."""
        if not self.gram.isfinite().all():
            return torch.full_like(self.gram[0, 0], torch.nan)  # what watches a training must not end it
        return self.rank(singular_values_of_gram(self.gram)).to(self.gram.dtype)

    @abstractmethod
    def rank(self, singular_values: Tensor) -> Tensor:
        """Return the rank.

        Args:
            singular_values: Of the features, `(num_features,)`, descending.
        """
