"""A multilayer perceptron."""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn

Normalization = Literal["none", "layer", "batch"]
Activation = Literal["relu", "crelu"]


class CReLU(nn.Module):
    """Concatenated ReLU: from `(batch, units)` to `(batch, 2 · units)`, max(x, 0) and max(−x, 0).

    No unit can become dormant on both sides. Source: Shang et al., ICML 2016; against loss of plasticity: Abbas et al.,
    Loss of plasticity in continual deep reinforcement learning, CoLLAs 2023.
    """

    def forward(self, inputs: Tensor) -> Tensor:
        """Return both halves."""
        return torch.cat([inputs, -inputs], dim=-1).relu()


class MLP(nn.Module):
    """Linear layers with a nonlinearity between them, by PyTorch's default initialisation.

    Args:
        inputs: Input dimension; of images, channels × height × width.
        outputs: Output dimension, such as the number of classes.
        hidden: Widths of the hidden layers.
        normalization: Of hidden layers, before the nonlinearity: `none`, `layer` (LayerNorm) or `batch` (BatchNorm).
        activation: `relu`, or `crelu`, which doubles the inputs of the next layer.

    Raises:
        ValueError: If a width is below 1, or an option is not known.

    Example:
        >>> import torch
        >>> MLP(inputs=784, outputs=10)(torch.zeros(5, 1, 28, 28)).shape
        torch.Size([5, 10])
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        hidden: Sequence[int] = (100, 100),
        normalization: Normalization = "none",
        activation: Activation = "relu",
    ):
        super().__init__()
        for name, value, options in (
            ("normalization", normalization, get_args(Normalization)),
            ("activation", activation, get_args(Activation)),
        ):
            if value not in options:
                raise ValueError(f"`{name}` must be one of {', '.join(map(repr, options))}, got {value!r}")
        if min(inputs, outputs, *hidden) < 1:
            raise ValueError(
                f"all widths must be at least 1, got inputs, hidden layers and outputs {[inputs, *hidden, outputs]}"
            )
        wider, nonlinearity = (2, CReLU) if activation == "crelu" else (1, nn.ReLU)
        normalize = {"none": None, "layer": nn.LayerNorm, "batch": nn.BatchNorm1d}[normalization]
        widths = [inputs, *(width * wider for width in hidden)]
        self.layers = nn.Sequential(nn.Flatten())
        for width, following in zip(widths, hidden, strict=False):
            self.layers.extend(
                [nn.Linear(width, following), *([normalize(following)] if normalize else []), nonlinearity()]
            )
        self.head = nn.Linear(widths[-1], outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs `(batch, outputs)` of inputs `(batch, ...)`, which are flattened."""
        return self.head(self.layers(inputs))
