"""The network of DQN (Mnih et al., Nature 2015)."""

from torch import Tensor, nn
from torch.nn.init import xavier_uniform_, zeros_


def _xavier(layer: nn.Conv2d | nn.Linear) -> None:
    xavier_uniform_(layer.weight)
    if layer.bias is not None:
        zeros_(layer.bias)


class _XavierConv2d(nn.Conv2d):
    reset_parameters = _xavier


class _XavierLinear(nn.Linear):
    reset_parameters = _xavier


class NatureCNN(nn.Module):
    """Three convolutions and a hidden layer, from stacked frames to the value of each action.

    `encoder` are the convolutions, to `(batch, 3136)`, `head` the two Linear layers. Initial weights are
    Xavier-uniform, biases 0 (Dopamine). Bytes are divided by 255.

    Args:
        num_actions: Number of outputs.
        frames: Stacked frames, the channels of the input.
        hidden: Width of the hidden layer.

    Example:
        >>> import torch
        >>> NatureCNN(num_actions=9)(torch.zeros(2, 4, 84, 84, dtype=torch.uint8)).shape
        torch.Size([2, 9])
    """

    def __init__(self, num_actions: int, frames: int = 4, hidden: int = 512):
        super().__init__()
        convolutions = _XavierConv2d(frames, 32, 8, 4), _XavierConv2d(32, 64, 4, 2), _XavierConv2d(64, 64, 3, 1)
        self.encoder = nn.Sequential(*(layer for conv in convolutions for layer in (conv, nn.ReLU())), nn.Flatten())
        self.head = nn.Sequential(_XavierLinear(64 * 7 * 7, hidden), nn.ReLU(), _XavierLinear(hidden, num_actions))

    def forward(self, frames: Tensor) -> Tensor:
        """Return the values of the actions `(batch, num_actions)` of frames `(batch, frames, 84, 84)`."""
        if not frames.is_floating_point():
            frames = frames.to(next(self.encoder.parameters()).dtype) / 255
        return self.head(self.encoder(frames))
