"""SFE of many weights, beside their size."""

from typing import Any

import torch
from torch import Tensor

from lightning_fire.functional import sfe
from lightning_fire.metrics.sums import Sums


class NormalizedSquaredFrobeniusError(Sums):
    """Σ‖W − W̃‖_F² / Σ‖W‖_F² over all pairs of weights it was given: what `fire/sfe_normalized` is.

    For one pair it is `lightning_fire.functional.sfe_normalized`. `update` takes a weight before and after, of one
    shape `(..., m, n)`, any each time. `compute` returns a scalar, float64: 0 where nothing changed, Inf where only
    zeros changed. Both sums are over processes too: where each has the same weights this changes nothing.

    Args:
        **kwargs: Of `torchmetrics.Metric`.

    Example:
        >>> import torch
        >>> metric = NormalizedSquaredFrobeniusError()
        >>> metric.update(torch.eye(2), 2 * torch.eye(2))
        >>> metric.update(torch.eye(6), torch.eye(6))
        >>> metric.compute()
        tensor(0.2500, dtype=torch.float64)
    """

    higher_is_better = False
    squared_error: Tensor
    squared_norm: Tensor

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.add_sum("squared_error")
        self.add_sum("squared_norm")

    def update(self, before: Tensor, after: Tensor) -> None:
        """Add a weight before and after, `(..., m, n)` each."""
        before, after = self.exact(before, "before"), self.exact(after, "after")
        self.squared_error = self.squared_error + sfe(before, after).sum()
        self.squared_norm = self.squared_norm + before.square().sum()

    def compute(self) -> Tensor:
        """Return the ratio of both sums so far."""
        return torch.where(self.squared_error == 0, 0.0, self.squared_error / self.squared_norm)
