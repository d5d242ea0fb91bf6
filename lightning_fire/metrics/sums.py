"""Base of the metrics: states are float64 sums over batches and processes."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics import Metric

from lightning_fire.functional.checks import real


class Sums(Metric):
    """Metric whose states are float64 sums over batches and processes.

    States stay float64 if a module is moved to half precision, by `Trainer(precision="bf16-true")` or `.to(dtype)`.
    Inputs of `update` are converted to float64 first, so autocast has no effect. For a device without float64, call
    `metric.set_dtype(torch.float32)` before moving there.
    """

    full_state_update = False
    is_differentiable = False
    higher_is_better = False
    plot_lower_bound = 0.0
    sums: tuple[str, ...] = ()
    """Names of the scalar states. A `MetricCollection` merges metrics whose states have equal names and values: sums of
    different meaning need different names."""

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        for name in self.sums:
            self.add_sum(name)

    def add_sum(self, name: str, *shape: int) -> None:
        """Add a state of this name and shape."""
        self.add_state(name, torch.zeros(shape, dtype=torch.float64), dist_reduce_fx="sum")

    def add(self, *values: Tensor | float) -> None:
        """Add one value to each state, in the order of the states."""
        for name, value in zip(self._defaults, values, strict=True):
            setattr(self, name, getattr(self, name) + value)

    def exact(self, tensor: Tensor, name: str) -> Tensor:
        """Check an input `(..., m, n)` of `update` and convert it to the dtype of the states."""
        default = next(iter(self._defaults.values()))
        assert isinstance(default, Tensor)  # no state is a list
        return real(tensor, name).to(default.dtype)

    def rows(self, tensor: Tensor, columns: int, name: str) -> Tensor:
        """Check an input `(..., columns)` of `update`; return it `exact`, as `(samples, columns)`."""
        if tensor.ndim and tensor.shape[-1] != columns:
            raise ValueError(f"`{name}` must have {columns} entries in its last dimension, got {tuple(tensor.shape)}")
        return self.exact(tensor, name).flatten(0, -2)

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """Draw a value, or a list of values over steps, with matplotlib; see `torchmetrics.Metric.plot`."""
        return self._plot(val, ax)

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> nn.Module:
        if self._dtype_convert:
            return super()._apply(fn, exclude_state)

        def moved(state: Tensor) -> Tensor:
            new = fn(state)
            return new if new.dtype == state.dtype else state.to(new.device)

        return super()._apply(moved, exclude_state)
