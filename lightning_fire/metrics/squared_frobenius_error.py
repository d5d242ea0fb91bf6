"""SFE of weights, and its ratio to their squared norm."""

import torch
from torch import Tensor

from lightning_fire.functional import sfe
from lightning_fire.metrics.sums import Sums


class SquaredFrobeniusError(Sums):
    """Sum of ‖W − W̃‖_F² over pairs of weights; see `lightning_fire.functional.sfe`.

    `update` takes a weight before and after, both of shape `(..., m, n)`, which may differ between calls. `compute`
    returns a float64 scalar of at least 0. The sum is also over processes: for weights that all of them hold, pass
    `sync_on_compute=False`.

    Example:
        >>> metric = SquaredFrobeniusError()
        >>> metric.update(torch.zeros(2, 2), torch.ones(2, 2))
        >>> metric.update(torch.zeros(3, 1), torch.ones(3, 1))
        >>> metric.compute()
        tensor(7., dtype=torch.float64)
    """

    sums = ("squared_error",)
    squared_error: Tensor

    def update(self, before: Tensor, after: Tensor) -> None:
        """Add a weight before and after, `(..., m, n)` each."""
        self.add(sfe(self.exact(before, "before"), self.exact(after, "after")).sum())

    def compute(self) -> Tensor:
        """Return the sum over all pairs since the last reset."""
        return self.squared_error.clone()


class NormalizedSquaredFrobeniusError(Sums):
    """Σ‖W − W̃‖_F² / Σ‖W‖_F² over pairs of weights: the logged `fire/sfe_normalized`.

    For one pair it is `lightning_fire.functional.sfe_normalized`. `update` takes a weight before and after, both of
    shape `(..., m, n)`. `compute` returns a float64 scalar of at least 0: 0 where nothing changed, Inf where only zeros
    changed. Both sums are also over processes: where each has the same weights this changes nothing.

    Example:
        >>> metric = NormalizedSquaredFrobeniusError()
        >>> metric.update(torch.eye(2), 2 * torch.eye(2))
        >>> metric.update(torch.eye(6), torch.eye(6))
        >>> metric.compute()
        tensor(0.2500, dtype=torch.float64)
    """

    sums = ("squared_error", "squared_norm")
    squared_error: Tensor
    squared_norm: Tensor

    def update(self, before: Tensor, after: Tensor) -> None:
        """Add a weight before and after, `(..., m, n)` each."""
        before, after = self.exact(before, "before"), self.exact(after, "after")
        self.add(sfe(before, after).sum(), before.square().sum())

    def compute(self) -> Tensor:
        """Return the ratio of the two sums since the last reset."""
        return torch.where(self.squared_error == 0, 0.0, self.squared_error / self.squared_norm)
