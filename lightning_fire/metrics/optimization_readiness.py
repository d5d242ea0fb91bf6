"""Optimization readiness from gradients of batches (Wang et al., arXiv 2605.09044)."""

from typing import Any

import torch
from torch import Tensor

from lightning_fire.functional import optimization_readiness_of
from lightning_fire.functional.checks import at_least
from lightning_fire.metrics.sums import Sums


class OptimizationReadiness(Sums):
    """Gradient strength times reliability, ‖G‖⁴ / E‖g‖²; see `lightning_fire.functional.optimization_readiness`.

    `update` takes gradients of batches of one size, `(batches, ..., num_parameters)`: all dimensions but the last count
    as batches. `compute` returns a float64 scalar of at least 0, NaN after a NaN or Inf or before the second gradient.

    Args:
        num_parameters: Size of the last dimension, at least 1.

    Example:
        >>> import torch
        >>> metric = OptimizationReadiness(num_parameters=2)
        >>> metric.update(torch.tensor([[3.0, 0.0]]))
        >>> metric.update(torch.tensor([[1.0, 0.0]]))
        >>> metric.compute()
        tensor(1.8000, dtype=torch.float64)
    """

    higher_is_better = True
    gradient: Tensor
    squared_gradient_norm: Tensor
    num_gradients: Tensor

    def __init__(self, num_parameters: int, **kwargs: Any):
        super().__init__(**kwargs)
        at_least(1, num_parameters=num_parameters)
        self.num_parameters = num_parameters
        self.add_sum("gradient", num_parameters)
        self.add_sum("squared_gradient_norm")
        self.add_sum("num_gradients")

    def update(self, gradients: Tensor) -> None:
        """Add gradients of batches, `(batches, ..., num_parameters)`."""
        rows = self.rows(gradients, self.num_parameters, "gradients")
        self.add(rows.sum(0), rows.square().sum(), len(rows))

    def compute(self) -> Tensor:
        """Return the readiness from all gradients since the last reset."""
        count = self.num_gradients
        if count < 2:
            return torch.full_like(count, torch.nan)
        return optimization_readiness_of(self.gradient / count, self.squared_gradient_norm / count, count)
