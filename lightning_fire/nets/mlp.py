"""A plain multilayer perceptron, without normalisation."""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn


class MLP(nn.Module):
    """Linear layers with ReLU between them, by PyTorch's default initialisation.

    Args:
        inputs: Input dimension; of images, channels × height × width.
        outputs: Output dimension, such as the number of classes.
        hidden: Widths of the hidden layers.

    Raises:
        ValueError: If a width is below 1.

    Example:
        >>> import torch
        >>> MLP(inputs=784, outputs=10)(torch.zeros(5, 1, 28, 28)).shape
        torch.Size([5, 10])
    """

    def __init__(self, inputs: int, outputs: int, hidden: Sequence[int] = (100, 100)):
        super().__init__()
        widths = [inputs, *hidden, outputs]
        if min(widths) < 1:
            raise ValueError(f"all widths must be at least 1, got inputs, hidden layers and outputs {widths}")
        self.layers = nn.Sequential(nn.Flatten())
        for width, following in pairwise(widths[:-1]):
            self.layers.extend([nn.Linear(width, following), nn.ReLU()])
        self.head = nn.Linear(widths[-2], outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs `(batch, outputs)` of inputs `(batch, ...)`, which are flattened."""
        return self.head(self.layers(inputs))
