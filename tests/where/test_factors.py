"""Layers that scale, mask or normalize their weight before they use it, by the source of their class."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lightning_fire import Weights, fire_
from lightning_fire.where.factors import factors_of_weight


class Linear(nn.Linear):
    """With a factor, a mask, a small correction, and a function for quantization."""

    def __init__(self):
        super().__init__(8, 8)
        self.c, self.one = 8**-0.5, 1.0
        self.register_buffer("mask", torch.ones(8, 8).tril())
        self.a, self.b = nn.Parameter(torch.randn(2, 8), False), nn.Parameter(torch.zeros(8, 2), False)

    def fake_quant(self, weight):
        return (weight / self.c).round() * self.c


class Equalized(Linear):
    def forward(self, x):
        return F.linear(x, self.weight * self.c, self.bias)


class Masked(Linear):
    def forward(self, x):
        weight, bias = self.weight, self.bias
        weight = self.mask[:8].to(x.dtype) * weight
        return F.linear(x, weight=weight, bias=bias)


class MaskedInPlace(Linear):
    """As the convolutions of PixelCNN."""

    def forward(self, x):
        self.weight.data *= self.mask
        return super().forward(x)


class MaskedByMethod(Linear):
    def forward(self, x):
        with torch.no_grad():
            self.weight.mul_(self.mask)
        return super().forward(x)


class Cosine(Linear):
    def forward(self, x):
        return F.normalize(x) @ F.normalize(self.weight).T


class Standardized(Linear):
    def standardized(self, weight):
        weight = weight - weight.mean(1, keepdim=True)
        return weight / weight.std(1, keepdim=True)

    def forward(self, x):
        return F.linear(x, self.standardized(self.weight), self.bias)


class Positive(Linear):
    @property
    def positive(self):
        return F.softplus(self.weight)

    def forward(self, x):
        return F.linear(x, self.positive)


class ScaledConv(nn.Conv2d):
    def __init__(self):
        super().__init__(8, 8, 1)
        self.gain = nn.Parameter(torch.full((8, 1, 1, 1), 0.1))

    def forward(self, x):
        return self._conv_forward(x, self.weight * self.gain, self.bias)


class MyEqualized(nn.Module):
    """Not torch's, with declared sizes."""

    def __init__(self):
        super().__init__()
        self.in_features = self.out_features = 8
        self.weight, self.c = nn.Parameter(torch.randn(8, 8)), 0.1

    def forward(self, x):
        return F.linear(x, self.weight * self.c)


SCALED = {
    Equalized: "scaled in the forward pass, by `c` of Equalized",
    Masked: "scaled in the forward pass, by `mask` of Masked",
    MaskedInPlace: "scaled in the forward pass, by `mask` of MaskedInPlace",
    MaskedByMethod: "scaled or normalized in the forward pass of MaskedByMethod",
    Cosine: "scaled or normalized in the forward pass of Cosine",
    Standardized: "scaled or normalized in the forward pass of Standardized",
    Positive: "scaled or normalized in the forward pass of Positive",
    ScaledConv: "scaled in the forward pass, by `gain` of ScaledConv",
    MyEqualized: "scaled in the forward pass, by `c` of MyEqualized",
}


@pytest.mark.parametrize("kind", SCALED)
def test_a_weight_that_its_layer_scales_masks_or_normalizes_is_left_out(kind):
    model = nn.ModuleDict({"layer": kind(), "head": nn.Linear(8, 8)})
    selection = Weights("cnn").select(model)
    assert selection.names == ["head.weight"]
    assert selection.left_out[0] == f"layer.weight: {SCALED[kind]}"
    before = model["layer"].weight.detach().clone()
    with pytest.warns(UserWarning, match=r"leaves out layer\.weight: scaled"):
        fire_(model)
    assert torch.equal(model["layer"].weight, before)
    layers = {"layer.weight": "out_in"}
    assert Weights("cnn", layers=layers).select(model).names == ["layer.weight", "head.weight"]


class LoRA(Linear):
    def merge(self):
        self.weight.data *= self.c  # not a part of the forward pass

    def forward(self, x):
        weight = self.weight + self.c * (self.b @ self.a)
        return F.linear(x, weight, self.bias) + (x @ self.a.T @ self.b.T) * self.weight.norm()


class Cast(Linear):
    """A cast and a slice; only the input, the output and a penalty are scaled."""

    def forward(self, x):
        weight = self.weight.to(x.dtype)[:8]
        self.penalty = (self.weight * self.c).pow(2).sum()
        x = F.linear(x * self.c, weight, self.bias) * self.mask[0]
        return x @ weight.T


class QuantizationAware(Linear):
    def forward(self, x):
        rounded = (self.weight / self.c).round().clamp(-8, 7) * self.c
        x = F.linear(x, self.weight + (rounded - self.weight).detach())
        return F.linear(F.linear(x, self.fake_quant(self.weight)), rounded)


class ScaledByOne(Linear):
    def forward(self, x):
        return F.linear(x, self.weight * self.one)


class Padded(nn.Conv2d):
    def __init__(self):
        super().__init__(8, 8, 3)

    def forward(self, x):
        return F.conv2d(F.pad(x, (1, 1, 1, 1)), self.weight, self.bias)


@pytest.mark.parametrize("kind", [LoRA, Cast, QuantizationAware, ScaledByOne, Padded])
def test_a_layer_with_its_own_forward_pass_that_uses_its_weight_as_it_is_stays(kind):
    assert Weights("cnn").select(kind()).names == ["weight"]


def test_layers_of_torch_use_their_weight_as_it_is():
    torch_ao = pytest.importorskip("torch.ao.nn.intrinsic.qat")
    kinds = [nn.Linear, nn.Conv1d, nn.ConvTranspose2d, nn.LazyConv2d]
    kinds += [nn.modules.linear.NonDynamicallyQuantizableLinear, torch_ao.ConvBn2d, torch_ao.LinearBn1d]
    assert {kind: factors_of_weight(kind) for kind in kinds} == dict.fromkeys(kinds, frozenset())


def test_convolutions_of_timm():
    layers = pytest.importorskip("timm.layers")
    assert not factors_of_weight(layers.Conv2dSame)
    for kind in (layers.StdConv2d, layers.ScaledStdConv2d):
        assert factors_of_weight(kind)
