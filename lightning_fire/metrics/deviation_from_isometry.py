"""Mean DfI of matrices, and its normalized version."""

from torch import Tensor

from lightning_fire.functional import dfi, dfi_normalized
from lightning_fire.metrics.sums import Sums


class DeviationFromIsometry(Sums):
    """Mean of ‖WᵀW − I‖_F² over matrices; see `lightning_fire.functional.dfi`.

    `update` takes matrices of shape `(..., m, n)`, where m and n may differ between calls; for a convolution weight
    `as_matrices(weight, groups)`. `compute` returns a float64 scalar of at least 0, NaN without matrices. The mean is
    also over processes: where each has the same weights this changes nothing.

    Example:
        >>> import torch
        >>> metric = DeviationFromIsometry()
        >>> metric.update(torch.eye(2))
        >>> metric.update(2 * torch.eye(2))
        >>> metric.compute()
        tensor(9., dtype=torch.float64)
    """

    sums = ("sum_of_deviations", "number_of_matrices")
    _deviation = staticmethod(dfi)

    def update(self, matrix: Tensor) -> None:
        """Add matrices, `(..., m, n)`."""
        values = self._deviation(self.exact(matrix, "matrix"))
        self.add(values.sum(), values.numel())

    def compute(self) -> Tensor:
        """Return the mean over all matrices since the last reset."""
        total, number = (getattr(self, name) for name in self.sums)
        mean: Tensor = total / number
        return mean


class NormalizedDeviationFromIsometry(DeviationFromIsometry):
    """Mean of ‖G/s² − I‖_F² / r over matrices; see `lightning_fire.functional.dfi_normalized`.

    Inputs and value are those of `DeviationFromIsometry`: matrices `(..., m, n)`, a float64 scalar of at least 0.

    Example:
        >>> import torch
        >>> metric = NormalizedDeviationFromIsometry()
        >>> metric.update(5 * torch.eye(2, 7))
        >>> metric.update(torch.diag(torch.tensor([1.0, 3.0])))
        >>> metric.compute()
        tensor(0.3200, dtype=torch.float64)
    """

    sums = ("sum_of_normalized_deviations", "number_of_matrices")
    _deviation = staticmethod(dfi_normalized)
