"""DfI of many matrices, free of shape and scale."""

from typing import Any

from torch import Tensor

from lightning_fire.functional import dfi_normalized
from lightning_fire.metrics.sums import Sums


class NormalizedDeviationFromIsometry(Sums):
    """Mean of ‖G/s² − I‖_F² / r over all matrices it was given; see `lightning_fire.functional.dfi_normalized`.

    `update` takes matrices of shape `(..., m, n)`, of any m and n each time; for a convolution weight
    `as_matrices(weight, groups)`. `compute` returns a scalar, float64, NaN without matrices. The mean is over
    processes too: where each has the same weights this changes nothing.

    Args:
        **kwargs: Of `torchmetrics.Metric`.

    Example:
        >>> import torch
        >>> metric = NormalizedDeviationFromIsometry()
        >>> metric.update(5 * torch.eye(2, 7))
        >>> metric.update(torch.diag(torch.tensor([1.0, 3.0])))
        >>> metric.compute()
        tensor(0.3200, dtype=torch.float64)
    """

    higher_is_better = False
    sum_of_normalized_deviations: Tensor
    number_of_matrices: Tensor

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.add_sum("sum_of_normalized_deviations")
        self.add_sum("number_of_matrices")

    def update(self, matrix: Tensor) -> None:
        """Add matrices, `(..., m, n)`."""
        values = dfi_normalized(self.exact(matrix, "matrix"))
        self.sum_of_normalized_deviations = self.sum_of_normalized_deviations + values.sum()
        self.number_of_matrices = self.number_of_matrices + values.numel()

    def compute(self) -> Tensor:
        """Return the mean so far."""
        return self.sum_of_normalized_deviations / self.number_of_matrices
