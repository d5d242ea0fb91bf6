"""Ranks of features, from their Gram matrix FᵀF.

`update` takes features `(..., num_features)`; all dimensions but the last count as samples. `compute` returns a float64
scalar, 0 for features of zeros, NaN after a NaN or Inf. Memory is num_features², for any number of samples.
Squaring costs digits: singular values below about √num_features · 1e-8 σ_max count as 0.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lightning_fire.functional import entropy_rank_of, srank_of, stable_rank_of
from lightning_fire.functional.checks import at_least
from lightning_fire.functional.ranks import singular_values_of_finite_gram
from lightning_fire.metrics.sums import Sums


class RankOfFeatures(Sums):
    """Base class of ranks, from FᵀF summed over batches. A `MetricCollection` shares it between ranks."""

    higher_is_better = True
    gram: Tensor
    _rank: Callable[[Tensor], Tensor]  # from singular values (num_features,), descending

    def __init__(self, num_features: int, **kwargs: Any):
        super().__init__(**kwargs)
        at_least(1, num_features=num_features)
        self.num_features = num_features
        self.add_sum("gram", num_features, num_features)

    def update(self, features: Tensor) -> None:
        """Add features of samples, `(..., num_features)`."""
        features = self.rows(features, self.num_features, "features")
        self.add(features.mT @ features)

    def compute(self) -> Tensor:
        """Return the rank of all features since the last reset."""
        if not self.gram.isfinite().all():
            return torch.full_like(self.gram[0, 0], torch.nan)  # a logged metric must not end a training
        return self._rank(singular_values_of_finite_gram(self.gram)).to(self.gram.dtype)


class SRank(RankOfFeatures):
    """Effective rank of features (Kumar et al., ICLR 2021); see `lightning_fire.functional.srank`.

    `compute` returns a whole number in [0, num_features].

    Args:
        num_features: Size of the last dimension of the features, at least 1.
        delta: δ, the fraction of the sum of singular values that may be missing, in [0, 1).

    Example:
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

    def _rank(self, singular_values: Tensor) -> Tensor:
        return srank_of(singular_values, self.delta)


class StableRank(RankOfFeatures):
    """Stable rank ‖F‖_F² / σ_max² of features; see `lightning_fire.functional.stable_rank`.

    `compute` returns a scalar in [1, num_features], or 0.

    Args:
        num_features: Size of the last dimension of the features, at least 1.

    Example:
        >>> metric = StableRank(num_features=2)
        >>> metric.update(torch.tensor([[2.0, 0.0]]))
        >>> metric.update(torch.tensor([[0.0, 1.0]]))
        >>> metric.compute()
        tensor(1.2500, dtype=torch.float64)
    """

    _rank = staticmethod(stable_rank_of)


class EntropyRank(RankOfFeatures):
    """exp of the entropy of σ / Σσ of features; see `lightning_fire.functional.entropy_rank`.

    `compute` returns a scalar in [1, num_features], or 0. Roy and Vetterli (EUSIPCO 2007) call it effective rank.

    Args:
        num_features: Size of the last dimension of the features, at least 1.

    Example:
        >>> metric = EntropyRank(num_features=2)
        >>> metric.update(torch.tensor([[2.0, 0.0]]))
        >>> metric.update(torch.tensor([[0.0, 2.0]]))
        >>> metric.compute().round(decimals=4)
        tensor(2., dtype=torch.float64)
    """

    _rank = staticmethod(entropy_rank_of)
