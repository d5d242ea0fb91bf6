"""The paper's image networks: plain modules, from images `(batch, C, H, W)` to logits `(batch, num_classes)`."""

from lightning_fire.nets.resnet import ResNet
from lightning_fire.nets.vgg import VGG
from lightning_fire.nets.vit import ViT

__all__ = ["VGG", "ResNet", "ViT"]
