"""SFE of many weights."""

from typing import Any

from torch import Tensor

from lightning_fire.functional import sfe
from lightning_fire.metrics.sums import Sums


class SquaredFrobeniusError(Sums):
    """Sum of ‖W − W̃‖_F² over all pairs of weights it was given; see `lightning_fire.functional.sfe`.

    `update` takes a weight before and after, of one shape `(..., m, n)`, any each time. `compute` returns a scalar,
    float64. The sum is over processes too: for weights that all of them hold, pass `sync_on_compute=False`.

    Args:
        **kwargs: Of `torchmetrics.Metric`.

    Example:
        >>> import torch
        >>> metric = SquaredFrobeniusError()
        >>> metric.update(torch.zeros(2, 2), torch.ones(2, 2))
        >>> metric.update(torch.zeros(3, 1), torch.ones(3, 1))
        >>> metric.compute()
        tensor(7., dtype=torch.float64)
    """

    higher_is_better = False
    squared_error: Tensor

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.add_sum("squared_error")

    def update(self, before: Tensor, after: Tensor) -> None:
        """Add a weight before and after, `(..., m, n)` each."""
        errors = sfe(self.exact(before, "before"), self.exact(after, "after"))
        self.squared_error = self.squared_error + errors.sum()

    def compute(self) -> Tensor:
        """Return the sum so far."""
        return self.squared_error.clone()
