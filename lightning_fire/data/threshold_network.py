"""The network that makes the targets of slowly-changing regression."""

from typing import NamedTuple

import torch
from torch import Tensor


class ThresholdNetwork(NamedTuple):
    """Fixed network with one hidden layer of linear threshold units; all its weights and biases are ±1.

    A unit outputs 1 if its pre-activation exceeds its threshold β (bits + 1) − S, else 0. S is the number of its
    weights of −1, plus half its bias.

    Source: the target network of Dohare et al., Loss of plasticity in deep continual learning, Nature 2024, as in
    their code (shibhansh/loss-of-plasticity, `lop/nets/fix_ltu_net.py`). The comment there counts the weights alone.

    Attributes:
        weights: Weights of the units, (hidden_units, bits).
        biases: Biases of the units, (hidden_units,).
        output_weights: Weights of the output, (hidden_units,).
        output_bias: Bias of the output, a scalar.
        threshold: β, in (0, 1): fraction of the inputs, bias included, that must agree with the weights of a unit.

    Example:
        >>> weights, one = torch.tensor([[1.0, -1.0, 1.0]]), torch.ones(1)
        >>> network = ThresholdNetwork(weights, one, one, torch.tensor(-1.0), threshold=0.7)
        >>> network.thresholds
        tensor([1.3000])
        >>> network(torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]]))
        tensor([[ 0.],
                [-1.]])
    """

    weights: Tensor
    biases: Tensor
    output_weights: Tensor
    output_bias: Tensor
    threshold: float

    @classmethod
    def draw(cls, bits: int, hidden_units: int, threshold: float, generator: torch.Generator) -> "ThresholdNetwork":
        """Draw all weights and biases from {−1, 1}.

        Args:
            bits: Input dimension.
            hidden_units: Number of units.
            threshold: β, in (0, 1).
            generator: Source of the draws.
        """
        shapes = (hidden_units, bits), (hidden_units,), (hidden_units,), ()
        draws = (torch.randint(2, shape, device="cpu", generator=generator) for shape in shapes)
        return cls(*(draw.float() * 2 - 1 for draw in draws), threshold)

    @property
    def thresholds(self) -> Tensor:
        """Threshold of each unit, (hidden_units,)."""
        bits = self.weights.shape[1]
        return self.threshold * (bits + 1) - (bits - self.weights.sum(1) + self.biases) / 2

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return the targets (n, 1) of inputs (n, bits) of 0 and 1."""
        fires = inputs @ self.weights.T + self.biases > self.thresholds
        return (fires.float() @ self.output_weights + self.output_bias).unsqueeze(1)
