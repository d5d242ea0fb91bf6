"""The networks that are timed."""

from collections.abc import Callable
from functools import partial

from torch import nn

from lightning_fire.nets import VGG, ResNet

# from `num_classes` and `in_channels`, which have defaults, to a network
NETS: dict[str, Callable[..., nn.Module]] = {
    "resnet-18": ResNet,  # the paper's for CIFAR-10
    "vgg-16": VGG,  # for Tiny ImageNet, 64 × 64
    # the small ResNet of the recipes on Fashion-MNIST
    "small": partial(ResNet, widths=(8, 16, 32, 64), blocks=(1, 1, 1, 1), head_width=None, stem_stride=2),
}
