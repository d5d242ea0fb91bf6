"""The paper's networks: plain modules.

From images `(batch, C, H, W)` to logits `(batch, num_classes)`; `GPT` from tokens `(batch, length)` to logits
`(batch, length, vocab_size)`; `NatureCNN` from frames to the values of actions, `SimBa` for actors and critics; `MLP`
for anything small.
"""

from lightning_fire.nets.causal_lm import causal_lm
from lightning_fire.nets.gpt import GPT
from lightning_fire.nets.mlp import MLP
from lightning_fire.nets.nature_cnn import NatureCNN
from lightning_fire.nets.resnet import ResNet
from lightning_fire.nets.simba import SimBa
from lightning_fire.nets.vgg import VGG
from lightning_fire.nets.vit import ViT

__all__ = ["GPT", "MLP", "VGG", "NatureCNN", "ResNet", "SimBa", "ViT", "causal_lm"]
