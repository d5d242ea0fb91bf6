"""Residual networks for small images."""

from collections.abc import Sequence

from torch import Tensor, nn


class ResNet(nn.Module):
    """Residual network of basic blocks with BatchNorm (He et al., arXiv:1512.03385), for small images.

    The stem is a 3×3 convolution, without max-pooling. Each stage but the first halves the resolution. The defaults are
    the paper's ResNet-18 for CIFAR-10, with a hidden layer of 512 in the head.

    Args:
        num_classes: Number of logits.
        in_channels: Channels of the images.
        widths: Channels of each stage.
        blocks: Basic blocks in each stage, as many numbers as `widths`.
        head_width: Units of the hidden layer between the average pooling and the logits; `None`: no such layer.
        stem_stride: Stride of the stem; 2 halves the resolution of everything.

    Raises:
        ValueError: If a size is below 1, or `widths` and `blocks` differ in length.

    Example:
        >>> import torch
        >>> net = ResNet(widths=(8, 16), blocks=(1, 1), in_channels=1, head_width=None)
        >>> net(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        num_classes: int = 10,
        in_channels: int = 3,
        widths: Sequence[int] = (64, 128, 256, 512),
        blocks: Sequence[int] = (2, 2, 2, 2),
        head_width: int | None = 512,
        stem_stride: int = 1,
    ):
        super().__init__()
        if not widths or len(widths) != len(blocks):
            raise ValueError(f"`widths` and `blocks` need one number per stage each, got {widths} and {blocks}")
        sizes = (num_classes, in_channels, stem_stride, *widths, *blocks, 1 if head_width is None else head_width)
        if min(sizes) < 1:
            raise ValueError(
                "every size must be at least 1, got "
                f"{num_classes=}, {in_channels=}, {widths=}, {blocks=}, {head_width=}, {stem_stride=}"
            )
        channels = widths[0]
        self.stem = nn.Sequential(
            nn.Conv2d(in_channels, channels, 3, stem_stride, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()
        )
        self.stages = nn.Sequential()
        for stage, (width, count) in enumerate(zip(widths, blocks, strict=True)):
            first = _BasicBlock(channels, width, stride=1 if stage == 0 else 2)
            self.stages.append(nn.Sequential(first, *(_BasicBlock(width, width, stride=1) for _ in range(count - 1))))
            channels = width
        self.head: nn.Module
        if head_width is None:
            self.head = nn.Linear(channels, num_classes)
        else:
            self.head = nn.Sequential(nn.Linear(channels, head_width), nn.ReLU(), nn.Linear(head_width, num_classes))

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits `(batch, num_classes)` of images `(batch, in_channels, H, W)` of any size."""
        return self.head(self.stages(self.stem(images)).mean((2, 3)))


class _BasicBlock(nn.Module):
    """ReLU(BN(conv(ReLU(BN(conv(x))))) + shortcut(x)); the shortcut is a 1×1 convolution where the shape changes."""

    def __init__(self, in_channels: int, channels: int, stride: int):
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(in_channels, channels, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, channels, 1, stride=stride, bias=False), nn.BatchNorm2d(channels)
            )
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.residual(x) + self.shortcut(x))
