"""DfI of many matrices."""

from typing import Any

from torch import Tensor

from lightning_fire.functional import dfi
from lightning_fire.metrics.sums import Sums


class DeviationFromIsometry(Sums):
    """Mean of ‖WᵀW − I‖_F² over all matrices it was given; see `lightning_fire.functional.dfi`.

    `update` takes matrices of shape `(..., m, n)`, of any m and n each time; for a convolution weight
    `as_matrices(weight, groups)`. `compute` returns a scalar, float64, NaN without matrices. The mean is over
    processes too: where each has the same weights this changes nothing.

    Args:
        **kwargs: Of `torchmetrics.Metric`.

    Example:
        >>> import torch
        >>> metric = DeviationFromIsometry()
        >>> metric.update(torch.eye(2))
        >>> metric.update(2 * torch.eye(2))
        >>> metric.compute()
        tensor(9., dtype=torch.float64)
    """

    higher_is_better = False
    sum_of_deviations: Tensor
    number_of_matrices: Tensor

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.add_sum("sum_of_deviations")
        self.add_sum("number_of_matrices")

    def update(self, matrix: Tensor) -> None:
        """Add matrices, `(..., m, n)`."""
        values = dfi(self.exact(matrix, "matrix"))
        self.sum_of_deviations = self.sum_of_deviations + values.sum()
        self.number_of_matrices = self.number_of_matrices + values.numel()

    def compute(self) -> Tensor:
        """Return the mean so far."""
        return self.sum_of_deviations / self.number_of_matrices
