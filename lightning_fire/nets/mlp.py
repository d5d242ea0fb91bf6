"""A multilayer perceptron."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor, nn

Normalization = Literal["none", "layer", "batch"]
Activation = Literal["relu", "crelu", "prelu", "aid"]


class CReLU(nn.Module):
    """Concatenated ReLU: from `(batch, units)` to `(batch, 2 · units)`, max(x, 0) and max(−x, 0).

    No unit can become dormant on both sides. Source: Shang et al., ICML 2016; against loss of plasticity: Abbas et al.,
    Loss of plasticity in continual deep reinforcement learning, CoLLAs 2023.
    """

    def forward(self, inputs: Tensor) -> Tensor:
        """Return both halves."""
        return torch.cat([inputs, -inputs], dim=-1).relu()


class AID(nn.Module):
    """Activation by interval-wise dropout: max(x, 0) with probability p, otherwise min(x, 0), for each value.

    In evaluation, the mean of both: p · x above 0, (1 − p) · x below. Source: Park et al., Activation by interval-wise
    dropout: a simple way to prevent neural networks from plasticity loss, ICML 2025.

    Args:
        p: Probability of the ReLU, in [0, 1] (paper: tuned, 0.9 for random labels, 0.99 for permuted inputs).

    Raises:
        ValueError: If `p` is out of range.
    """

    def __init__(self, p: float = 0.9):
        super().__init__()
        if not 0 <= p <= 1:
            raise ValueError(f"`p` must be in [0, 1], got {p}")
        self.p = p

    def forward(self, inputs: Tensor) -> Tensor:
        """Return values of the shape of `inputs`."""
        if not self.training:
            return self.p * inputs.clamp(min=0) + (1 - self.p) * inputs.clamp(max=0)
        return torch.where(torch.rand_like(inputs) < self.p, inputs.clamp(min=0), inputs.clamp(max=0))


class MLP(nn.Module):
    """Linear layers with a nonlinearity between them, by PyTorch's default initialization.

    Args:
        inputs: Input dimension; of images, channels × height × width.
        outputs: Output dimension, such as the number of classes.
        hidden: Widths of the hidden layers.
        normalization: Of hidden layers, before the nonlinearity: `none`, `layer` (LayerNorm) or `batch` (BatchNorm).
        activation: `relu`; `crelu`, which doubles the inputs of the next layer; `prelu`, whose slope below 0 each unit
            learns, as AdaLin makes of a ReLU (Rohani et al., CoLLAs 2025); or `aid`, see `AID`.
        aid_p: Probability of the ReLU with `aid`.

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
        aid_p: float = 0.9,
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
        wider = 2 if activation == "crelu" else 1
        normalize = {"none": None, "layer": nn.LayerNorm, "batch": nn.BatchNorm1d}[normalization]
        widths = [inputs, *(width * wider for width in hidden)]
        self.layers = nn.Sequential(nn.Flatten())
        for width, following in zip(widths, hidden, strict=False):
            made: Mapping[str, Callable[[], nn.Module]]
            made = {"relu": nn.ReLU, "crelu": CReLU, "prelu": partial(nn.PReLU, following), "aid": partial(AID, aid_p)}
            normalized = [normalize(following)] if normalize else []
            self.layers.extend([nn.Linear(width, following), *normalized, made[activation]()])
        self.head = nn.Linear(widths[-1], outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs `(batch, outputs)` of inputs `(batch, ...)`, which are flattened."""
        return self.head(self.layers(inputs))
