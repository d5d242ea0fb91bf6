"""Normalization by running statistics."""

import torch
from torch import Tensor, nn


class RunningNorm(nn.Module):
    """Normalize inputs of dimension `size` by the mean and the variance of all inputs given to `observe`."""

    mean: Tensor
    variance: Tensor
    count: Tensor

    def __init__(self, size: int):
        super().__init__()
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
        return (inputs - self.mean) * (self.variance + 1e-8).rsqrt()
