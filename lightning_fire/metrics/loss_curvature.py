"""Sharpness of the loss (paper, section "Ablation study")."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from lightning_fire.functional import loss_curvature
from lightning_fire.metrics.sums import Sums


class LossCurvature(Sums):
    """Largest eigenvalue of the Hessian of the loss, mean over batches; see `lightning_fire.functional.loss_curvature`.

    `update` takes the loss of a batch and costs 10 to 20 gradients. `compute` returns a float64 scalar of any sign, NaN
    without batches; the mean is also over processes. It is an upper bound of the largest eigenvalue of the mean loss,
    equal to it for one batch. The caller sets the modes of the module: with dropout, each loss is of one random mask.

    Args:
        tolerance: Stop when the residual is at most this fraction of the eigenvalue.
        max_products: Largest number of products with the Hessian, for each batch.

    Example:
        >>> import torch
        >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> metric = LossCurvature(tolerance=1e-6)
        >>> metric.update((3 * x**2).sum(), [x])
        >>> metric.update((x**2).sum(), [x])
        >>> round(metric.compute().item(), 4)
        4.0
    """

    plot_lower_bound = None
    sums = ("sum_of_eigenvalues", "number_of_batches")

    def __init__(self, tolerance: float = 0.01, max_products: int = 100, **kwargs: Any):
        super().__init__(**kwargs)
        self.tolerance, self.max_products = tolerance, max_products

    def update(self, loss: Tensor, parameters: Iterable[Tensor]) -> None:
        """Add a batch: its loss, a scalar with its graph, and the parameters of the Hessian."""
        self.add(loss_curvature(loss, list(parameters), self.tolerance, self.max_products).value, 1)

    def compute(self) -> Tensor:
        """Return the mean over all batches since the last reset."""
        return self.sum_of_eigenvalues / self.number_of_batches
