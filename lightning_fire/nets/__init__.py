"""Networks of the paper, as plain PyTorch modules."""

from lightning_fire.nets.causal_lm import causal_lm
from lightning_fire.nets.gpt import GPT
from lightning_fire.nets.mlp import MLP
from lightning_fire.nets.nature_cnn import NatureCNN
from lightning_fire.nets.resnet import ResNet
from lightning_fire.nets.simba import SimBa
from lightning_fire.nets.vgg import VGG
from lightning_fire.nets.vit import ViT

__all__ = ["GPT", "MLP", "VGG", "NatureCNN", "ResNet", "SimBa", "ViT", "causal_lm"]
