"""VGG networks."""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn


class VGG(nn.Module):
    """VGG network with BatchNorm (Simonyan and Zisserman, arXiv:1409.1556).

    A stage is a sequence of 3×3 convolutions (with bias), each followed by BatchNorm and ReLU, and a 2×2 max-pooling.
    The defaults are the paper's VGG-16 for Tiny ImageNet.

    Args:
        num_classes: Number of logits.
        in_channels: Channels of the images.
        image_size: Height and width of the images, in pixels.
        stages: Channels of each convolution of each stage.
        head_widths: Units of each hidden layer between the flattened features and the logits; may be empty.

    Raises:
        ValueError: If a size is below 1, a stage is empty, or the stages do not halve `image_size` to a whole number.

    Example:
        >>> import torch
        >>> net = VGG(num_classes=10, in_channels=1, image_size=28, stages=((8,), (16,)), head_widths=(32,))
        >>> net(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        num_classes: int = 200,
        in_channels: int = 3,
        image_size: int = 64,
        stages: Sequence[Sequence[int]] = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512)),
        head_widths: Sequence[int] = (1024, 1024),
    ):
        super().__init__()
        if not stages or not all(stages):
            raise ValueError(f"`stages` must hold at least one stage, each with a convolution, got {stages}")
        widths = [width for stage in stages for width in stage]
        if min(num_classes, in_channels, image_size, *widths, *head_widths) < 1:
            raise ValueError(
                "every size must be at least 1, got "
                f"{num_classes=}, {in_channels=}, {image_size=}, {stages=}, {head_widths=}"
            )
        if image_size % 2 ** len(stages):
            raise ValueError(
                f"`image_size` must be divisible by {2 ** len(stages)}, to be halved by each of the {len(stages)}"
                f" stages, got {image_size}"
            )
        self.stages, self.head = nn.Sequential(), nn.Sequential()
        channels = in_channels
        for stage in stages:
            layers: list[nn.Module] = []
            for inputs, outputs in pairwise([channels, *stage]):
                layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
            self.stages.append(nn.Sequential(*layers, nn.MaxPool2d(2)))
            channels = stage[-1]
        widths = [channels * (image_size // 2 ** len(stages)) ** 2, *head_widths]
        for inputs, outputs in pairwise(widths):
            self.head.extend([nn.Linear(inputs, outputs), nn.ReLU()])
        self.head.append(nn.Linear(widths[-1], num_classes))

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits `(batch, num_classes)` of images `(batch, in_channels, image_size, image_size)`."""
        return self.head(self.stages(images).flatten(1))
