"""What all metrics here have in common: their states are sums, and those are exact enough."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from lightning_fire.functional.checks import real


class Sums(Metric):
    """A metric whose states are float64 sums over batches and processes.

    States stay float64 where a module is moved to half precision, by `Trainer(precision="bf16-true")` or `.to(dtype)`,
    and what is given to `update` is converted to float64 first, so autocast changes nothing either. For a device that
    has no float64, call `metric.set_dtype(torch.float32)` before moving there.
    """

    full_state_update = False
    is_differentiable = False
    plot_lower_bound = 0.0

    def add_sum(self, name: str, *shape: int) -> None:
        """Add a state.

        Args:
            name: Its attribute. Classes of which a state means different things must name it differently: a
                `MetricCollection` takes metrics with equal states for one.
            shape: Its shape.
        """
        self.add_state(name, torch.zeros(shape, dtype=torch.float64), dist_reduce_fx="sum")

    def exact(self, tensor: Tensor, name: str) -> Tensor:
        """Check an input of `update` and convert it to the dtype of the states.

        Args:
            tensor: Shape `(..., m, n)`, real floating dtype.
            name: What the caller calls it.

        Raises:
            TypeError: If `tensor` is not of a real floating dtype.
            ValueError: If `tensor` has fewer than 2 dimensions.
        """
        return real(tensor, name).to(next(iter(self._defaults.values())).dtype)

    def rows(self, tensor: Tensor, columns: int, name: str) -> Tensor:
        """Check an input of `update` and take all its dimensions but the last for one of samples.

        Args:
            tensor: Shape `(..., columns)`, real floating dtype.
            columns: Size that its last dimension must have.
            name: What the caller calls it.

        Returns:
            Shape `(samples, columns)`, dtype of the states.

        Raises:
            TypeError: If `tensor` is not of a real floating dtype.
            ValueError: If `tensor` has fewer than 2 dimensions or another number of columns.
        """
        if tensor.ndim and tensor.shape[-1] != columns:
            raise ValueError(f"`{name}` must have {columns} entries in its last dimension, got {tuple(tensor.shape)}")
        return self.exact(tensor, name).flatten(0, -2)

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """Draw a value, or a list of values over steps, with matplotlib; see `torchmetrics.Metric.plot`.

        Args:
            val: One or more results. Default: that of `compute`.
            ax: Axes to draw on.
        """
        return self._plot(val, ax)

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> "Sums":
        if self._dtype_convert:
            return super()._apply(fn, exclude_state)

        def moved(state: Tensor) -> Tensor:
            new = fn(state)
            return new if new.dtype == state.dtype else state.to(new.device)

        return super()._apply(moved, exclude_state)


def positive_count(value: Any, name: str) -> int:
    """Return a number of features or units.

    Raises:
        ValueError: If it is no whole number of at least 1.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"`{name}` must be a whole number of at least 1, got {value!r}")
    return value
