"""Sharpness of the loss (paper, section "Ablation study")."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from lightning_fire.functional import loss_curvature
from lightning_fire.metrics.sums import Sums


class LossCurvature(Sums):
    """Largest eigenvalue of the Hessian of the loss, mean over batches; see `lightning_fire.functional.loss_curvature`.

    Each `update` costs some 10 to 20 gradients. The mean is an upper bound of the largest eigenvalue of the mean loss,
    equal to it for one batch. The modes of the module are the caller's: in evaluation mode the loss is one function.
    `compute` returns a scalar, float64, NaN without batches. The mean is over processes too.

    Args:
        tolerance: Stop when the residual is at most this share of the eigenvalue.
        max_products: Products with the Hessian at most, for each batch.
        **kwargs: Of `torchmetrics.Metric`.

    Example:
        >>> import torch
        >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> metric = LossCurvature(tolerance=1e-6)
        >>> metric.update((3 * x**2).sum(), [x])
        >>> metric.update((x**2).sum(), [x])
        >>> round(metric.compute().item(), 4)
        4.0
    """

    higher_is_better = False
    plot_lower_bound = None
    sum_of_eigenvalues: Tensor
    number_of_batches: Tensor

    def __init__(self, tolerance: float = 0.01, max_products: int = 100, **kwargs: Any):
        super().__init__(**kwargs)
        self.tolerance, self.max_products = tolerance, max_products
        self.add_sum("sum_of_eigenvalues")
        self.add_sum("number_of_batches")

    def update(self, loss: Tensor, parameters: Iterable[Tensor]) -> None:
        """Add a batch: its loss, a scalar with its graph, and what to derive by."""
        eigenvalue = loss_curvature(loss, list(parameters), self.tolerance, self.max_products)
        self.sum_of_eigenvalues = self.sum_of_eigenvalues + eigenvalue.value
        self.number_of_batches = self.number_of_batches + 1

    def compute(self) -> Tensor:
        """Return the mean so far."""
        return self.sum_of_eigenvalues / self.number_of_batches
