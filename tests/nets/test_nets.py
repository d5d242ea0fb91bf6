"""The networks: sizes of the paper's, formulas, and the interface for callbacks and command line."""

import math
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, gelu, layer_norm

from lightning_fire.nets import MLP, VGG, ResNet, ViT
from lightning_fire.nets.mlp import AID

SMALL = {
    "resnet": (ResNet, {"in_channels": 1, "widths": [16, 32, 64], "blocks": [1, 1, 1], "head_width": None}),
    "resnet_head": (ResNet, {"in_channels": 1, "widths": [8, 8, 16], "blocks": [2, 1, 1], "head_width": 12}),
    "vgg": (
        VGG,
        {"num_classes": 10, "in_channels": 1, "image_size": 28, "stages": [[8, 8], [16]], "head_widths": [32]},
    ),
    "vgg_no_hidden": (
        VGG,
        {"num_classes": 10, "in_channels": 1, "image_size": 28, "stages": [[8]], "head_widths": []},
    ),
    "vit": (
        ViT,
        {
            "num_classes": 10,
            "in_channels": 1,
            "image_size": 28,
            "patch_size": 7,
            "dim": 24,
            "depth": 2,
            "heads": 2,
            "head_dim": 8,
            "mlp_dim": 40,
        },
    ),
}


@pytest.fixture(params=sorted(SMALL))
def build(request):
    """A function that makes one small network for 1 × 28 × 28 images and 10 classes."""
    net_class, arguments = SMALL[request.param]
    return lambda: net_class(**arguments)


def conv(inputs: int, outputs: int, side: int) -> int:
    """Parameters of a square convolution without bias, and of the BatchNorm (γ, β) after it."""
    return inputs * outputs * side**2 + 2 * outputs


def linear(inputs: int, outputs: int) -> int:
    return inputs * outputs + outputs


def size(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


def test_resnet_18_of_the_paper():
    stem = conv(3, 64, 3)
    first_stage = 4 * conv(64, 64, 3)  # two blocks of two convolutions, no weights in the shortcuts
    later_stages = [conv(c, 2 * c, 3) + 3 * conv(2 * c, 2 * c, 3) + conv(c, 2 * c, 1) for c in (64, 128, 256)]
    head = linear(512, 512) + linear(512, 10)
    assert stem + first_stage + sum(later_stages) + head == 11_436_618
    net = ResNet()
    assert size(net) == 11_436_618
    assert net(torch.zeros(1, 3, 32, 32)).shape == (1, 10)
    assert net.stages(net.stem(torch.zeros(1, 3, 32, 32))).shape == (1, 512, 4, 4)


def test_vgg_16_of_the_paper():
    channels = [3, 64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512]
    features = sum(conv(inputs, outputs, 3) + outputs for inputs, outputs in pairwise(channels))  # + its bias
    head = linear(512 * 2 * 2, 1024) + linear(1024, 1024) + linear(1024, 200)
    assert features + head == 18_075_912
    net = VGG()
    assert size(net) == 18_075_912
    assert net(torch.zeros(1, 3, 64, 64)).shape == (1, 200)


def test_vit_tiny_of_the_paper():
    patch, tokens = 4 * 4 * 3, 8 * 8 + 1
    norm = 2 * 192
    embedding = 2 * patch + linear(patch, 192) + norm + 192 + tokens * 192
    attention = norm + 3 * 192 * (3 * 64) + linear(3 * 64, 192)
    mlp = norm + linear(192, 768) + linear(768, 192)
    assert embedding + 12 * (attention + mlp) + norm + linear(192, 100) == 5_373_700
    net = ViT()
    assert size(net) == 5_373_700
    assert net(torch.zeros(1, 3, 32, 32)).shape == (1, 100)


def test_small_siblings_give_logits_and_pass_gradient_to_every_parameter(build):
    net = build().eval()  # in training BatchNorm takes a bias before it away
    logits = net(torch.rand(4, 1, 28, 28))
    assert logits.shape == (4, 10)
    cross_entropy(logits, torch.arange(4)).backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None and parameter.grad.count_nonzero() > 0, name


def test_resnet_takes_images_of_any_size():
    net = ResNet(widths=(4, 8), blocks=(1, 1), head_width=None)
    assert net(torch.zeros(2, 3, 17, 30)).shape == (2, 10)


def test_re_initializing_every_layer_equals_a_newly_built_net(build):
    """`FullReset(fresh_seed=0)` and shrink-and-perturb rely on it."""
    net = build()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(7.0)
    torch.manual_seed(1)
    for layer in net.modules():
        if hasattr(layer, "reset_parameters"):
            layer.reset_parameters()
    torch.manual_seed(1)
    new = build()
    for (name, parameter), expected in zip(net.named_parameters(), new.parameters(), strict=True):
        assert torch.equal(parameter, expected), name


def test_class_token_and_positions_are_standard_normal():
    state = ViT().state_dict()
    drawn = torch.cat([state["tokens.class_token"].flatten(), state["tokens.positions"].flatten()])
    assert drawn.mean().abs() < 0.05
    assert (drawn.std() - 1).abs() < 0.05


def slow_vit(net: ViT, image: torch.Tensor, heads: int) -> torch.Tensor:
    """Logits of one image `(C, H, W)`, by loops over patches, heads and tokens, in float64."""
    w = {name: tensor.double() for name, tensor in net.state_dict().items()}

    def norm(x, name):
        return layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"])

    def affine(x, name):
        return torch.einsum("oi,ti->to", w[f"{name}.weight"], x) + w[f"{name}.bias"]

    p = net.patch_size
    channels, height, width = image.shape
    patches = [
        [image[c, top + i, left + j].item() for i in range(p) for j in range(p) for c in range(channels)]
        for top in range(0, height, p)
        for left in range(0, width, p)
    ]
    x = norm(torch.tensor(patches, dtype=torch.float64), "patch_embedding.0")
    x = norm(affine(x, "patch_embedding.1"), "patch_embedding.2")
    x = torch.cat([w["tokens.class_token"][0], x]) + w["tokens.positions"][0]
    for block in range(len(net.blocks)):
        attention, mlp = f"blocks.{block}.attention", f"blocks.{block}.mlp"
        y = norm(x, f"{attention}.0")
        q, k, v = (torch.einsum("oi,ti->to", w[f"{attention}.1.to_{letter}.weight"], y) for letter in "qkv")
        dim = q.shape[1] // heads
        mixed = torch.zeros_like(q)
        for head in range(heads):
            part = slice(head * dim, (head + 1) * dim)
            for token in range(len(x)):
                scores = torch.stack([q[token, part] @ key / math.sqrt(dim) for key in k[:, part]]).exp()
                mixed[token, part] = torch.einsum("t,td->d", scores / scores.sum(), v[:, part])
        x = x + affine(mixed, f"{attention}.1.to_out")
        x = x + affine(gelu(affine(norm(x, f"{mlp}.0"), f"{mlp}.1")), f"{mlp}.3")
    return affine(norm(x, "norm")[:1], "head")[0]


def test_vit_equals_a_slow_one():
    net = ViT(num_classes=5, image_size=12, patch_size=4, dim=20, depth=2, heads=3, head_dim=6, mlp_dim=16)
    with torch.no_grad():  # biases and norms away from 0 and 1, attention away from uniform
        for parameter in net.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    net = net.double()
    images = torch.rand(2, 3, 12, 12, dtype=torch.float64)
    expected = torch.stack([slow_vit(net, image, heads=3) for image in images])
    torch.testing.assert_close(net(images), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("net_class", "arguments", "message"),
    [
        (ResNet, {"widths": (8, 16), "blocks": (1,)}, r"`widths` and `blocks` need one number per stage each, got \(8"),
        (ResNet, {"widths": (), "blocks": ()}, "`widths` and `blocks` need one number per stage"),
        (ResNet, {"blocks": (2, 2, 0, 2)}, r"every size must be at least 1, got .*blocks=\(2, 2, 0, 2\)"),
        (ResNet, {"head_width": 0}, "every size must be at least 1, got .*head_width=0"),
        (VGG, {"image_size": 28}, "`image_size` must be divisible by 32, .* the 5 stages, got 28"),
        (VGG, {"stages": ()}, "`stages` must hold at least one stage"),
        (VGG, {"stages": ((8,), ())}, "`stages` must hold at least one stage, each with a convolution"),
        (VGG, {"num_classes": 0}, "every size must be at least 1, got num_classes=0"),
        (ViT, {"image_size": 30}, "`image_size` must be divisible by `patch_size`, got 30 and 4"),
        (ViT, {"patch_size": 0}, "every size must be at least 1, got .*patch_size=0"),
    ],
)
def test_impossible_sizes(net_class, arguments, message):
    with pytest.raises(ValueError, match=message):
        net_class(**arguments)


@pytest.mark.parametrize("normalization", ["none", "layer", "batch"])
@pytest.mark.parametrize("activation", ["relu", "crelu", "prelu", "aid"])
def test_an_mlp_normalizes_before_its_nonlinearity(normalization, activation):
    net, x = MLP(6, 3, [5, 4], normalization, activation), torch.randn(7, 2, 3)
    slope = {"relu": 0.0, "crelu": 0.0, "prelu": 0.25, "aid": 0.1}[activation]
    above = 0.9 if activation == "aid" else 1.0
    for layer in net.layers if activation == "aid" else ():
        layer.train(not isinstance(layer, AID))
    expected = x.flatten(1)
    linear = [layer for layer in net.layers if isinstance(layer, nn.Linear)]
    for layer in linear:
        expected = layer(expected)
        dim = {"none": None, "layer": 1, "batch": 0}[normalization]
        if dim is not None:
            variance = expected.var(dim, keepdim=True, correction=0)
            expected = (expected - expected.mean(dim, keepdim=True)) / (variance + 1e-5).sqrt()
        halves = [expected, -expected] if activation == "crelu" else [expected]
        joined = torch.cat(halves, 1)
        expected = torch.where(joined > 0, above * joined, slope * joined)
    torch.testing.assert_close(net(x), net.head(expected))


def test_each_unit_of_a_prelu_has_its_slope():
    net = MLP(6, 3, [5, 4], activation="prelu")
    assert [layer.weight.shape for layer in net.layers if isinstance(layer, nn.PReLU)] == [(5,), (4,)]


def test_interval_wise_dropout_passes_one_side_of_each_value():
    torch.manual_seed(0)
    layer, x = AID(p=0.7), torch.randn(20000)
    output = layer(x)
    assert torch.equal(output.where(output != 0, x), x)
    assert float((output[x > 0] != 0).float().mean()) == pytest.approx(0.7, abs=0.02)
    assert float((output[x < 0] != 0).float().mean()) == pytest.approx(0.3, abs=0.02)
    torch.testing.assert_close(layer.eval()(x), torch.where(x > 0, 0.7 * x, 0.3 * x))
    assert torch.equal(AID(p=1.0)(x), x.relu())
    assert MLP(6, 3, [5, 4], activation="aid", aid_p=0.7).layers[2].p == 0.7
    with pytest.raises(ValueError, match=r"`p` must be in \[0, 1\], got 1.5"):
        AID(p=1.5)


@pytest.mark.parametrize("option", ["normalization", "activation"])
def test_an_mlp_rejects_unknown_options(option):
    with pytest.raises(ValueError, match=f"`{option}` must be one of .*, got 'other'"):
        MLP(6, 3, **{option: "other"})
