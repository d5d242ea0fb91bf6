"""The network of SimBa (Lee et al., ICLR 2025): residual blocks with layer normalisation, for actors and critics."""

import torch
from torch import Tensor, nn
from torch.nn.init import kaiming_normal_, orthogonal_, zeros_


class SimBa(nn.Module):
    """A Linear layer, residual blocks, a layer normalisation, and one Linear layer or more to the outputs.

    Each layer draws its initial values by `reset_parameters`: the first and the last orthogonal, those of the blocks
    normal (He), biases 0.

    Args:
        inputs: Numbers of an observation; for a critic, of an observation and an action together.
        outputs: Numbers of the output; for an actor, twice those of an action: means, and logarithms of deviations.
        hidden: Width (paper: 128 for actors, 512 for critics).
        blocks: Residual blocks (paper: 1 for actors, 2 for critics).
        heads: Linear layers that share the outputs out equally (SimBa: 2 for actors).

    Raises:
        ValueError: If `outputs` is no multiple of `heads`.

    Example:
        >>> SimBa(inputs=67, outputs=2 * 21, hidden=128, blocks=1, heads=2)(torch.zeros(5, 67)).shape
        torch.Size([5, 42])
    """

    def __init__(self, inputs: int, outputs: int, hidden: int = 512, blocks: int = 2, heads: int = 1):
        super().__init__()
        if outputs % heads:
            raise ValueError(f"`outputs` must be a multiple of `heads`, got {outputs} and {heads}")
        self.encoder = nn.Sequential(
            _Orthogonal(inputs, hidden), *(_Block(hidden) for _ in range(blocks)), nn.LayerNorm(hidden)
        )
        self.heads = nn.ModuleList(_Orthogonal(hidden, outputs // heads) for _ in range(heads))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs `(batch, outputs)` of inputs `(batch, inputs)`."""
        hidden = self.encoder(inputs)
        return torch.cat([head(hidden) for head in self.heads], -1)


class _Block(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.expand, self.contract = _He(width, 4 * width), _He(4 * width, width)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + self.contract(self.expand(self.norm(inputs)).relu())


class _Orthogonal(nn.Linear):
    @torch.no_grad()
    def reset_parameters(self) -> None:
        orthogonal_(self.weight)
        zeros_(self.bias)


class _He(nn.Linear):
    @torch.no_grad()
    def reset_parameters(self) -> None:
        kaiming_normal_(self.weight)
        zeros_(self.bias)
