"""Normalization by running statistics."""

import torch
from torch import Tensor, nn


class RunningNorm(nn.Module):
    """Normalize inputs by the mean and the standard deviation of all inputs given to `observe`, per dimension.

    Args:
        size: Input dimension.
        eps: Added to the variance.

    Example:
        >>> norm = RunningNorm(1)
        >>> norm.observe(torch.tensor([[1.0], [3.0]]))
        >>> norm(torch.tensor([[3.0]]))
        tensor([[1.]])
    """

    def __init__(self, size: int, eps: float = 1e-8):
        super().__init__()
        self.eps = eps
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("variance", torch.ones(size))
        self.register_buffer("count", torch.tensor(0.0))

    @torch.no_grad()
    def observe(self, inputs: Tensor) -> None:
        """Add inputs `(batch, size)` to the statistics."""
        number = len(inputs)
        total = self.count + number
        variance, mean = torch.var_mean(inputs, 0, correction=0)
        difference = mean - self.mean
        squares = self.variance * self.count + variance * number + difference.square() * (self.count * number / total)
        self.mean += difference * (number / total)
        self.variance.copy_(squares / total)
        self.count.copy_(total)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the normalized inputs, same shape; before anything was observed, the inputs."""
        return (inputs - self.mean) * (self.variance + self.eps).rsqrt()
