"""Weights that are followed by a normalization layer, and the scale that FIRE chooses by it."""

import copy

import pytest
import torch
from small_training import fitted
from torch import nn

from lightning_fire import FIRECallback, fire_
from lightning_fire.functional import fire
from lightning_fire.nets import GPT, MLP, VGG, ResNet
from lightning_fire.where import Weights, normalized_weights
from lightning_fire.where.normalized import normalization_layers

NETWORKS = {  # with the weights that nothing normalizes later
    "mlp": (lambda: MLP(8, 3, [6, 5]), ["layers.1.weight", "layers.3.weight", "head.weight"]),
    "mlp_layer": (lambda: MLP(8, 3, [6, 5], "layer"), ["head.weight"]),
    "mlp_batch": (lambda: MLP(8, 3, [6, 5], "batch"), ["head.weight"]),
    "resnet": (
        lambda: ResNet(in_channels=1, widths=[4, 8], blocks=[1, 1], head_width=6),
        ["head.0.weight", "head.2.weight"],
    ),
    "vgg": (
        lambda: VGG(num_classes=10, in_channels=1, image_size=8, stages=[[4], [8]], head_widths=[6]),
        ["head.0.weight", "head.2.weight"],
    ),
    "gpt": (lambda: GPT(vocab_size=11, block_size=4, depth=1, heads=2, dim=8), []),  # its head is tied to the embedding
}


@pytest.mark.parametrize("name", NETWORKS)
def test_weights_before_the_last_normalization_layer_are_normalized(name):
    make, expected = NETWORKS[name]
    model = make()
    views = Weights().select(model)
    assert [view.name for view in views if view.name not in normalized_weights(model, views)] == expected


def test_weight_norm_is_not_a_normalization_layer():
    layers = nn.Linear(4, 4), nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), nn.LayerNorm(4)
    assert len(normalization_layers(nn.Sequential(*layers))) == 1
    assert normalization_layers(nn.Sequential(*layers[:2])) == []


def test_layers_with_normal_initial_values_are_no_normalization_layers():
    model = GPT(vocab_size=11, block_size=4, depth=1, heads=2, dim=8)
    norms = [place for place, module in enumerate(model.modules()) if isinstance(module, nn.LayerNorm)]
    assert normalization_layers(model) == norms and len(norms) == 3


def test_a_normalization_layer_is_known_by_its_class_and_cancels_the_scale():
    names = ["L2Normalize", "BatchNormalization", "LocalResponseNorm", "NormalParamExtractor", "TanhNormal"]
    layers = [type(name, (nn.Module,), {})() for name in [*names, "RMSNorm"]]
    assert normalization_layers(nn.Sequential(*layers)) == [1, 2, 6]


def test_the_automatic_scale_is_the_papers_where_normalized_and_else_keeps_the_norm():
    model = MLP(8, 3, [6, 5], "layer")
    expected = copy.deepcopy(model)
    fire_(model, scale="auto")
    for name, scale in {"layers.1": "paper", "layers.4": "paper", "head": "procrustes"}.items():
        old, new = expected.get_submodule(name).weight, model.get_submodule(name).weight
        assert torch.equal(fire(old.detach(), scale=scale), new), name


def test_the_callback_logs_its_choice_and_the_reason(caplog):
    with caplog.at_level("INFO"):
        fitted(FIRECallback(scale="auto"))
    expected = (
        ", scale paper for the 1 that are normalized later (net.0.weight) and procrustes for the 2 that are not"
        " normalized later (net.3.weight, net.5.weight), AtNewData(skip_first=True);"
    )
    assert expected in caplog.text
