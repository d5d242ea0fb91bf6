"""Dormant units of a layer (Sokar et al., ICML 2023)."""

from typing import Any

from torch import Tensor

from lightning_fire.functional import dormant_fraction
from lightning_fire.functional.checks import at_least
from lightning_fire.metrics.sums import Sums


class DormantFraction(Sums):
    """Fraction of the units of a layer that are dormant; see `lightning_fire.functional.dormant_fraction`.

    `update` takes outputs of the layer after norm and nonlinearity, `(samples, ..., num_units)`: all dimensions but the
    last, such as positions in an image or a text, count as samples. For a convolution: `activation.movedim(1, -1)`.
    `compute` returns a float64 scalar in [0, 1], NaN after a NaN or Inf. Batches may differ in size.

    Args:
        num_units: Size of the last dimension, at least 1.
        threshold: τ, at least 0: a unit is dormant if its mean |h| is at most τ times that of the layer (ReDo: 0.025).

    Example:
        >>> import torch
        >>> metric = DormantFraction(num_units=4)
        >>> metric.update(torch.tensor([[0.0, 0.0, 1.0, 1.0]]))
        >>> metric.update(torch.tensor([[0.0, 3.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0]]))
        >>> metric.compute()
        tensor(0.2500, dtype=torch.float64)
    """

    plot_upper_bound = 1.0
    activity: Tensor

    def __init__(self, num_units: int, threshold: float = 0.025, **kwargs: Any):
        super().__init__(**kwargs)
        at_least(1, num_units=num_units)
        at_least(0, whole=False, threshold=threshold)
        self.num_units, self.threshold = num_units, threshold
        self.add_sum("activity", num_units)

    def update(self, activation: Tensor) -> None:
        """Add outputs of the layer, `(samples, ..., num_units)`."""
        self.add(self.rows(activation, self.num_units, "activation").abs().sum(0))

    def compute(self) -> Tensor:
        """Return the fraction of the units that are dormant on all samples since the last reset."""
        return dormant_fraction(self.activity, self.threshold)
