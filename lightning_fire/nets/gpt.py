"""Decoder-only transformer of GPT-2."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class GPT(nn.Module):
    """GPT-2 (Radford et al., 2019) as nanoGPT trains it: a decoder-only transformer for next-token prediction.

    Pre-norm blocks, learned positions, and a head tied to the token embedding (one parameter, named
    `transformer.wte.weight` first; `to_empty` of a net on the meta device separates the two). The names are those of
    Hugging Face's `GPT2LMHeadModel`, but weights are stored `(out, in)`. The defaults are nanoGPT's 124M parameters.

    Initial values as in GPT-2: weights from N(0, 0.02²), the `c_proj` before a residual addition from
    N(0, 0.02² / (2 · depth)), biases 0, norms 1 and 0. Resampling draws the tied weight twice; the head's draw stays.

    Args:
        vocab_size: Number of tokens (GPT-2: 50257; nanoGPT pads it to a multiple of 64).
        block_size: Longest sequence, in tokens.
        depth: Number of blocks.
        heads: Attention heads in each block.
        dim: Width of a token; each block's MLP has `4 · dim` hidden units.
        bias: Whether Linear and LayerNorm layers have biases (Hugging Face: yes; nanoGPT: no). The head has none.
        dropout: Probability of dropout, of the sum of the embeddings, of attention weights and before each residual
            addition; in [0, 1).

    Raises:
        ValueError: If a size is below 1, `dim` is not divisible by `heads`, or `dropout` is outside [0, 1).

    Example:
        >>> import torch
        >>> net = GPT(vocab_size=11, block_size=8, depth=2, heads=2, dim=4)
        >>> net(torch.tensor([[3, 1, 4], [1, 5, 9]])).shape
        torch.Size([2, 3, 11])
        >>> net.lm_head.weight is net.transformer.wte.weight
        True
    """

    def __init__(
        self,
        vocab_size: int = 50304,
        block_size: int = 1024,
        depth: int = 12,
        heads: int = 12,
        dim: int = 768,
        bias: bool = False,
        dropout: float = 0.0,
    ):
        super().__init__()
        if min(vocab_size, block_size, depth, heads, dim) < 1:
            raise ValueError(
                f"every size must be at least 1, got {vocab_size=}, {block_size=}, {depth=}, {heads=}, {dim=}"
            )
        if dim % heads:
            raise ValueError(f"`dim` must be divisible by `heads`, got {dim} and {heads}")
        if not 0 <= dropout < 1:
            raise ValueError(f"`dropout` must be in [0, 1), got {dropout}")
        self.vocab_size, self.block_size, self.dim = vocab_size, block_size, dim
        self.depth, self.heads = depth, heads
        self.dropout = dropout
        self.transformer: Any = nn.ModuleDict(
            {
                "wte": _NormalEmbedding(vocab_size, dim),
                "wpe": _NormalEmbedding(block_size, dim),
                "drop": nn.Dropout(dropout),
                "h": nn.ModuleList(_CausalBlock(depth, heads, dim, bias, dropout) for _ in range(depth)),
                "ln_f": nn.LayerNorm(dim, bias=bias),
            }
        )
        self.lm_head = _NormalLinear(dim, vocab_size, bias=False)
        self.transformer["wte"].weight = self.lm_head.weight  # the draw that stays when all layers are resampled

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits `(batch, length, vocab_size)` of the token after each position.

        Args:
            tokens: Shape `(batch, length)`, int64, in [0, `vocab_size`); at most `block_size` long.
        """
        if tokens.ndim != 2:
            raise ValueError(f"`tokens` must have the shape (batch, length), got {tuple(tokens.shape)}")
        if tokens.shape[1] > self.block_size:
            raise ValueError(f"`tokens` must be at most `block_size` = {self.block_size} long, got {tokens.shape[1]}")
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.transformer.drop(self.transformer.wte(tokens) + self.transformer.wpe(positions))
        for block in self.transformer.h:
            x = block(x)
        return self.lm_head(self.transformer.ln_f(x))

    def flops_per_token(self, length: int) -> int:
        """Estimate the floating-point operations of training on one token, forward and backward.

        6 · N + 12 · depth · dim · length, with N the number of parameters without the position embedding (appendix B
        of PaLM, Chowdhery et al., arXiv:2204.02311, as in nanoGPT). The causal mask is not counted as a saving.

        Args:
            length: Tokens in a sequence, in [1, `block_size`].
        """
        if not 1 <= length <= self.block_size:
            raise ValueError(f"`length` must be in [1, {self.block_size}], got {length}")
        size = sum(parameter.numel() for parameter in self.parameters()) - self.transformer.wpe.weight.numel()
        return 6 * size + 12 * self.depth * self.dim * length


class _NormalLinear(nn.Linear):
    """Linear layer whose weight is drawn from N(0, `std`²) and whose bias starts at 0."""

    def __init__(self, inputs: int, outputs: int, bias: bool, std: float = 0.02):
        self.std = std  # before nn.Linear draws
        super().__init__(inputs, outputs, bias=bias)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.std)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class _NormalEmbedding(nn.Embedding):
    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=0.02)


class _CausalBlock(nn.Module):
    def __init__(self, depth: int, heads: int, dim: int, bias: bool, dropout: float):
        super().__init__()
        std = 0.02 / math.sqrt(2 * depth)  # 2 · depth projections add to the residual stream
        self.ln_1 = nn.LayerNorm(dim, bias=bias)
        self.attn = _CausalAttention(heads, dim, bias, dropout, std)
        self.ln_2 = nn.LayerNorm(dim, bias=bias)
        self.mlp: Any = nn.Sequential()
        self.mlp.c_fc = _NormalLinear(dim, 4 * dim, bias)
        self.mlp.act = nn.GELU()
        self.mlp.c_proj = _NormalLinear(4 * dim, dim, bias, std)
        self.mlp.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class _CausalAttention(nn.Module):
    is_causal = True  # by this `Weights` recognizes a language model, as in transformers

    def __init__(self, heads: int, dim: int, bias: bool, dropout: float, residual_std: float):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.c_attn = _NormalLinear(dim, 3 * dim, bias)  # query, key and value, one below the other
        self.c_proj = _NormalLinear(dim, dim, bias, residual_std)
        self.resid_dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.c_attn(x).chunk(3, dim=-1))
        dropout = self.dropout if self.training else 0.0
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
        return self.resid_dropout(self.c_proj(attended.transpose(1, 2).flatten(2)))  # from (batch, heads, length, …)
