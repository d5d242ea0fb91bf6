"""Vision Transformer."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class ViT(nn.Module):
    """Vision Transformer (Dosovitskiy et al., arXiv:2010.11929) with LayerNorm before and after the patch embedding.

    Blocks are pre-norm, with separate projections `to_q`, `to_k` and `to_v` without bias. The logits come from the
    class token. The defaults are the paper's ViT-Tiny for CIFAR-100.

    Args:
        num_classes: Number of logits.
        in_channels: Channels of the images.
        image_size: Height and width of the images, in pixels.
        patch_size: Height and width of a patch, in pixels.
        dim: Width of a token.
        depth: Number of blocks.
        heads: Attention heads in each block.
        head_dim: Width of the query, key and value of one head.
        mlp_dim: Hidden units of each block's MLP.

    Raises:
        ValueError: If a size is below 1, or `image_size` is not divisible by `patch_size`.

    Example:
        >>> import torch
        >>> net = ViT(num_classes=10, in_channels=1, image_size=28, patch_size=7, dim=16, depth=1, mlp_dim=32)
        >>> net(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        num_classes: int = 100,
        in_channels: int = 3,
        image_size: int = 32,
        patch_size: int = 4,
        dim: int = 192,
        depth: int = 12,
        heads: int = 3,
        head_dim: int = 64,
        mlp_dim: int = 768,
    ):
        super().__init__()
        if min(num_classes, in_channels, image_size, patch_size, dim, depth, heads, head_dim, mlp_dim) < 1:
            raise ValueError(
                f"every size must be at least 1, got {num_classes=}, {in_channels=}, {image_size=}, {patch_size=},"
                f" {dim=}, {depth=}, {heads=}, {head_dim=}, {mlp_dim=}"
            )
        if image_size % patch_size:
            raise ValueError(f"`image_size` must be divisible by `patch_size`, got {image_size} and {patch_size}")
        self.patch_size = patch_size
        patch_dim = in_channels * patch_size**2
        self.patch_embedding = nn.Sequential(nn.LayerNorm(patch_dim), nn.Linear(patch_dim, dim), nn.LayerNorm(dim))
        self.tokens = _ClassTokenAndPositions((image_size // patch_size) ** 2, dim)
        self.blocks = nn.Sequential(*(_ViTBlock(dim, heads, head_dim, mlp_dim) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits `(batch, num_classes)` of images `(batch, in_channels, image_size, image_size)`."""
        size = self.patch_size
        grid = images.unfold(2, size, size).unfold(3, size, size)  # (batch, C, rows, columns, size, size)
        patches = grid.permute(0, 2, 3, 4, 5, 1).flatten(3).flatten(1, 2)  # (batch, patches, size · size · C)
        x = self.tokens(self.patch_embedding(patches))  # (batch, 1 + patches, dim)
        return self.head(self.norm(self.blocks(x)[:, 0]))


class _ClassTokenAndPositions(nn.Module):
    """Prepend a learned token to `(batch, patches, dim)` and add a learned embedding of the position."""

    def __init__(self, patches: int, dim: int):
        super().__init__()
        self.class_token = nn.Parameter(torch.empty(1, 1, dim))
        self.positions = nn.Parameter(torch.empty(1, 1 + patches, dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Resample both from N(0, 1), as in the authors' code."""
        nn.init.normal_(self.class_token)
        nn.init.normal_(self.positions)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((self.class_token.expand(len(x), -1, -1), x), dim=1) + self.positions


class _ViTBlock(nn.Module):
    def __init__(self, dim: int, heads: int, head_dim: int, mlp_dim: int):
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(dim), _ViTAttention(dim, heads, head_dim))
        self.mlp = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, mlp_dim), nn.GELU(), nn.Linear(mlp_dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        return x + self.mlp(x)


class _ViTAttention(nn.Module):
    def __init__(self, dim: int, heads: int, head_dim: int):
        super().__init__()
        self.heads = heads
        self.to_q, self.to_k, self.to_v = (nn.Linear(dim, heads * head_dim, bias=False) for _ in range(3))
        self.to_out = nn.Linear(heads * head_dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        projected = (project(x).unflatten(-1, (self.heads, -1)) for project in (self.to_q, self.to_k, self.to_v))
        q, k, v = (part.transpose(1, 2) for part in projected)
        attended = F.scaled_dot_product_attention(q, k, v)  # (batch, heads, tokens, head_dim)
        return self.to_out(attended.transpose(1, 2).flatten(2))
