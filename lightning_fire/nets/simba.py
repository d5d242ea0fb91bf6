"""The network of SimBa (Lee et al., ICLR 2025): residual blocks with layer normalization, for actors and critics."""

import torch
from torch import Tensor, nn
from torch.nn.init import kaiming_normal_, orthogonal_, zeros_


class SimBa(nn.Module):
    """A Linear layer, residual blocks, a layer normalization, and one or more parallel Linear layers as heads.

    Initial weights are orthogonal in the first and last layers and He-normal in the blocks; biases are 0.

    Args:
        inputs: Input dimension: of an observation; for a critic, of an observation and an action together.
        outputs: Output dimension; for an actor, twice that of an action: means, and logarithms of deviations.
        hidden: Width (paper: 128 for actors, 512 for critics).
        blocks: Residual blocks (paper: 1 for actors, 2 for critics).
        heads: Linear layers, each with an equal part of the outputs (SimBa: 2 for actors).

    Raises:
        ValueError: If `outputs` is not a multiple of `heads`.

    Example:
        >>> SimBa(inputs=67, outputs=2 * 21, hidden=128, blocks=1, heads=2)(torch.zeros(5, 67)).shape
        torch.Size([5, 42])
    """

    def __init__(self, inputs: int, outputs: int, hidden: int = 512, blocks: int = 2, heads: int = 1):
        super().__init__()
        if outputs % heads:
            raise ValueError(f"`outputs` must be a multiple of `heads`, got {outputs} and {heads}")
        residual = (_ResidualBlock(hidden) for _ in range(blocks))
        self.encoder = nn.Sequential(_Orthogonal(inputs, hidden), *residual, nn.LayerNorm(hidden))
        self.heads = nn.ModuleList(_Orthogonal(hidden, outputs // heads) for _ in range(heads))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs `(batch, outputs)` of inputs `(batch, inputs)`."""
        hidden = self.encoder(inputs)
        return torch.cat([head(hidden) for head in self.heads], -1)


class _ResidualBlock(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.expand, self.contract = _He(width, 4 * width), _He(4 * width, width)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + self.contract(self.expand(self.norm(inputs)).relu())


class _Orthogonal(nn.Linear):
    def reset_parameters(self) -> None:
        orthogonal_(self.weight)
        zeros_(self.bias)


class _He(nn.Linear):
    def reset_parameters(self) -> None:
        kaiming_normal_(self.weight)
        zeros_(self.bias)
