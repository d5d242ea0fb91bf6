"""`HiddenUnits`: finds the units of the network as it runs, and leaves alone what it cannot resolve."""

import re

import pytest
import torch
import torchvision
from torch import nn
from torch.nn import functional as F

from lightning_fire.nets import VGG, ResNet, ViT
from lightning_fire.where import HiddenUnits


class NatureCNN(nn.Sequential):
    """The network of DQN, for 84×84 images."""

    def __init__(self):
        super().__init__(
            nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(),
            nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 6),
        )  # fmt: skip


class Backwards(nn.Module):
    """Its modules are not in the order in which they run; functional nonlinearities; two readers of one layer."""

    def __init__(self):
        super().__init__()
        self.value = nn.Linear(8, 1)
        self.policy = nn.Linear(8, 3)
        self.second = nn.Linear(6, 8)
        self.norm = nn.LayerNorm(6)
        self.first = nn.Linear(5, 6)

    def forward(self, x):
        h = self.second(F.gelu(self.norm(self.first(x))) * 2)
        h = torch.tanh(h)
        return self.policy(h), self.value(h)


class OneDropout(nn.Module):
    """Uses one Dropout, and one ReLU, after each layer."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(5, 6), nn.Linear(6, 6), nn.Linear(6, 2)
        self.relu, self.dropout = nn.ReLU(), nn.Dropout(0.5)

    def forward(self, x):
        h = self.dropout(self.relu(self.first(x)))
        return self.third(self.dropout(self.relu(self.second(h))))


MLP = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Dropout(0.5), nn.Linear(7, 6), nn.Linear(6, 2))
NETS = {
    "mlp": (lambda: MLP, (4, 5), ["0", "4"]),
    "nature_cnn": (NatureCNN, (2, 4, 84, 84), ["0", "2", "4", "7"]),
    "backwards": (Backwards, (4, 5), ["first", "second"]),
    "one_dropout": (OneDropout, (4, 5), ["first", "second"]),
    "resnet": (
        lambda: ResNet(widths=(4, 8), blocks=(1, 2), head_width=6),
        (2, 3, 8, 8),
        ["stages.0.0.residual.0", "stages.1.0.residual.0", "stages.1.1.residual.0", "head.0"],
    ),
    "vgg": (lambda: VGG(num_classes=5), (2, 3, 64, 64), None),
    "vit": (
        lambda: ViT(depth=2, dim=16, heads=2, head_dim=8, mlp_dim=20), (2, 3, 32, 32),
        ["blocks.0.mlp.1", "blocks.1.mlp.1"],
    ),
    "torchvision": (
        torchvision.models.resnet18, (2, 3, 64, 64), [f"layer{i}.{j}.conv1" for i in (1, 2, 3, 4) for j in (0, 1)]
    ),
}  # fmt: skip


def built(name):
    build, shape, _ = NETS[name]
    torch.manual_seed(0)
    net = build().eval()
    with torch.no_grad():
        for tensor in [*net.parameters(), *net.buffers()]:
            if tensor.ndim == 1:
                tensor.uniform_(0.5, 1.5)  # norms and biases that matter
    return net, torch.randn(shape)


def outputs(net, x):
    with torch.no_grad():
        result = net(x)
    return torch.cat([part.flatten() for part in (result if isinstance(result, tuple) else (result,))])


def activation(layer, net, x):
    """Activations of the units of a layer, shape (samples, units)."""
    seen = []
    handle = layer.observed.register_forward_pre_hook(lambda module, args: seen.append(args[0].clone()))
    outputs(net, x)
    handle.remove()
    return layer.activity(seen[0])


@pytest.mark.parametrize("name", NETS)
def test_the_layers_found(name):
    net, x = built(name)
    found = HiddenUnits().select(net, lambda: net(x))
    if name == "vgg":
        assert len(found) == 15  # 13 convolutions and 2 hidden Linear layers
        assert found[12].outgoing[0].block == 4
    else:
        assert [layer.name for layer in found] == NETS[name][2]


@pytest.mark.parametrize("name", NETS)
def test_a_unit_has_an_effect_unless_its_outgoing_weights_are_zero(name):
    """Everything that belongs to the unit may then be changed: weights, bias, entries of norms."""
    net, x = built(name)
    for layer in HiddenUnits().select(net, lambda: net(x)):
        normed = [type(part) for part in net.modules() if isinstance(part, nn.LayerNorm)]
        unit = activation(layer, net, x).abs().mean(0).argmax(0, keepdim=True)
        kept = {key: value.clone() for key, value in net.state_dict().items()}
        full = outputs(net, x)
        with torch.no_grad():
            for outgoing in layer.outgoing:
                columns = outgoing.columns(unit)
                assert len(columns) == outgoing.block
                outgoing.view.grid()[0, 0][:, columns] = 0.0
        silent = outputs(net, x)
        assert not torch.allclose(silent, full, atol=1e-6), f"{layer.name}: those were not its outgoing weights"
        with torch.no_grad():
            layer.incoming.grid()[0, 0][unit] += 1.0
            for entries in layer.entries:
                entries.tensor[unit] += 1.0
        if not (normed and name == "backwards" and layer.name == "first"):  # LayerNorm mixes its units
            torch.testing.assert_close(outputs(net, x), silent)
        net.load_state_dict(kept)


@pytest.mark.parametrize("name", NETS)
def test_the_activation_is_that_of_the_unit_after_norm_and_nonlinearity(name):
    net, x = built(name)
    for layer in HiddenUnits().select(net, lambda: net(x)):
        one = activation(layer, net, x)
        unit = int(one.abs().mean(0).argmax())
        kept = {key: value.clone() for key, value in net.state_dict().items()}
        with torch.no_grad():
            layer.incoming.grid()[0, 0][unit] *= 3.0
            for entries in layer.entries[:1]:
                entries.tensor[unit] += 1.0
        other = activation(layer, net, x)
        net.load_state_dict(kept)
        assert one.shape[1] == layer.size
        if not (name == "backwards" and layer.name == "first"):  # LayerNorm mixes its units
            assert (one != other).any(0).nonzero().flatten().tolist() == [unit], layer.name
        if name in ("nature_cnn", "one_dropout", "resnet", "vgg", "torchvision"):
            assert one.min() >= 0, f"{layer.name} is not watched after its ReLU"


def test_entries_of_norms():
    net, x = built("mlp")
    layer = HiddenUnits().select(net, lambda: net(x))[0]
    named = {id(tensor): key for key, tensor in net.state_dict(keep_vars=True).items()}
    assert {(named[id(entry.tensor)], entry.start) for entry in layer.entries} == {
        ("0.bias", 0.0),
        ("1.running_mean", 0.0),
        ("1.running_var", 1.0),
        ("1.weight", 1.0),
        ("1.bias", 0.0),
    }


def test_dropout_is_not_in_what_is_watched():
    net, x = built("mlp")
    assert HiddenUnits().select(net, lambda: net(x))[0].observed is net[3]  # what goes into the Dropout


# --- what is left alone ----------------------------------------------------------------------------------------------


class Doubled(torch.autograd.Function):
    """Not visible to a dispatch mode."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


class Odd(nn.Module):
    """Two layers, and something between them."""

    def __init__(self, between, extra=None):
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 6)
        self.between, self.extra = between, extra

    def forward(self, x):
        return self.second(self.between(self, torch.relu(self.first(x))))


def mixing(net, h):
    h[:, 0] = h[:, 1]
    return h


CASES = {
    "a matrix product": (lambda net, h: h @ torch.eye(6), r"goes into Tensor.matmul|goes into Tensor.__matmul__"),
    "a sum of two": (lambda net, h: h + net.extra(h), "goes into Tensor.add"),
    "a product of two": (lambda net, h: h * torch.sigmoid(net.extra(h)), "goes into Tensor.mul"),
    "softmax": (lambda net, h: h.softmax(-1), "goes into Tensor.softmax"),
    "sorting": (lambda net, h: h.sort(-1).values, "goes into Tensor.sort"),
    "a mean over the units": (lambda net, h: h - h.mean(-1, keepdim=True), "goes into Tensor.mean"),
    "heads": (lambda net, h: h.view(-1, 2, 3).transpose(1, 2).reshape(-1, 6), "goes into Tensor.view"),
    "concatenation": (lambda net, h: torch.cat([h[:, :3], h[:, 3:]], -1), "goes into Tensor.__getitem__"),
    "writing into it": (mixing, r"goes into Tensor.__(set|get)item__"),
    "an alias": (lambda net, h: h.data, "goes into Tensor.data"),
    "an autograd function": (lambda net, h: Doubled.apply(h), "goes into Doubled"),
    "a second use": (lambda net, h: torch.relu(net.second(h)), "goes into second, which runs more than once"),
    "functional weights": (lambda net, h: F.linear(h, torch.eye(6)), "goes into a weight that is not a parameter"),
    "a parametrized weight": (
        lambda net, h: net.extra(h), "goes into a weight that is not a parameter of a layer"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_is_not_known_is_left_alone_and_named(case):
    between, reason = CASES[case]
    extra = nn.Linear(6, 6)
    if case == "a parametrized weight":
        extra = nn.utils.parametrizations.weight_norm(extra)
    net = Odd(between, extra)
    with pytest.raises(ValueError, match=f"first: ({reason})") as error:
        HiddenUnits(include=["first"]).select(net, lambda: net(torch.randn(3, 4)))
    assert "HiddenUnits(include=['first'], exclude=None) finds no hidden units of Odd" in str(error.value)


def test_a_layer_that_runs_twice_is_left_alone():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.shared, self.out = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x):
            return self.out(torch.relu(self.shared(torch.relu(self.shared(x)))))

    net = Twice()
    with pytest.raises(ValueError, match="shared: runs 2 times in one forward pass"):
        HiddenUnits().select(net, lambda: net(torch.randn(3, 4)))


def test_passes_without_gradients_count_only_if_there_are_only_such():
    net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 2))
    x = torch.randn(3, 4)

    def look():
        with torch.no_grad():
            return net(x)

    for forward in (lambda: (look(), net(x), look()), lambda: net(x), look):
        found = HiddenUnits().select(net, forward)
        assert [(layer.name, layer.observed) for layer in found] == [("0", net[3]), ("3", net[5])]
        assert [layer.outgoing[0].view.name for layer in found] == ["3.weight", "5.weight"]
        assert [layer.with_gradients for layer in found] == [forward is not look] * 2
        for grad in (True, False):
            with torch.set_grad_enabled(grad):
                assert [layer.counts_now() for layer in found] == [grad or forward is look] * 2
    with pytest.raises(ValueError, match="0: runs 2 times in one forward pass"):
        HiddenUnits().select(net, lambda: (look(), look()))


def test_a_module_that_sees_the_units_once_with_gradients_and_once_without_is_watched():
    """Each Dropout sees its layer twice, one of them in a pass that does not count."""
    net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Dropout(0.5), nn.Linear(5, 2))

    def both():
        with torch.no_grad():
            net(torch.randn(3, 4))
        return net(torch.randn(3, 4))

    (found,) = HiddenUnits().select(net, both)
    assert found.observed is net[2]


def test_layers_that_read_units_without_gradients_are_outgoing():
    """Like the critic of an actor with the same features."""

    class Actor(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.policy, self.value = nn.Linear(4, 6), nn.Linear(6, 2), nn.Linear(6, 1)

        def forward(self, x):
            h = torch.relu(self.first(x))
            with torch.no_grad():
                value = self.value(h)
            return self.policy(h) * value

    net = Actor()
    (found,) = HiddenUnits().select(net, lambda: net(torch.randn(3, 4)))
    assert [outgoing.view.name for outgoing in found.outgoing] == ["value.weight", "policy.weight"]

    def in_both_ways():
        h = torch.relu(net.first(torch.randn(3, 4)))
        with torch.no_grad():
            target = net.policy(h)
        return net.policy(h) - target

    (found,) = HiddenUnits(include=["first"]).select(net, in_both_ways)
    assert [outgoing.view.name for outgoing in found.outgoing] == ["policy.weight"]


def test_a_shared_norm_grouped_convolutions_and_frozen_layers_are_left_alone():
    norm = nn.BatchNorm1d(4)
    net = nn.Sequential(nn.Linear(4, 4), norm, nn.ReLU(), nn.Linear(4, 4), norm, nn.ReLU(), nn.Linear(4, 2))
    with pytest.raises(ValueError, match="its normalization layer runs more than once"):
        HiddenUnits().select(net, lambda: net(torch.randn(3, 4)))
    convs = nn.Sequential(nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Conv2d(4, 8, 3, groups=2), nn.ReLU(), nn.Conv2d(8, 2, 1))
    convs.append(nn.Conv2d(2, 2, 1))
    found = HiddenUnits().select(convs, lambda: convs(torch.randn(2, 4, 9, 9)))
    assert [layer.name for layer in found] == ["4"]
    reasons = {name: reason for name, _, _, reason in found.rows}
    assert reasons["0"] == "goes into 2, a grouped convolution"
    assert reasons["2"] == "a grouped convolution"
    frozen = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    frozen[0].weight.requires_grad_(False)
    assert [layer.name for layer in HiddenUnits().select(frozen, lambda: frozen(torch.randn(3, 4)))] == ["2"]


def test_patterns():
    net, x = built("nature_cnn")
    found = HiddenUnits(include=["[0247]"], exclude=["7"]).select(net, lambda: net(x))
    assert [layer.name for layer in found] == ["0", "2", "4"]
    assert re.search(r"7 +512 +9.weight +excluded", str(found))
    with pytest.raises(ValueError, match="`include` has 'conv', which matches no layer; there are: 0, 2, 4, 7, 9"):
        HiddenUnits(include=["conv"]).select(net, lambda: net(x))


def test_tracing_leaves_the_module_unchanged():
    net, x = built("resnet")
    before = {key: value.clone() for key, value in net.state_dict().items()}
    apply = vars(torch.autograd.Function)["apply"]
    HiddenUnits().select(net, lambda: net(x))
    assert all(not module._forward_pre_hooks for module in net.modules())
    assert vars(torch.autograd.Function)["apply"] is apply
    assert all(torch.equal(before[key], value) for key, value in net.state_dict().items())
    with pytest.raises(RuntimeError, match="shapes"):
        HiddenUnits().select(net, lambda: net.head(torch.zeros(2, 3)))
    assert all(not module._forward_pre_hooks for module in net.modules())


@pytest.mark.slow
def test_compiled_models():
    net = torch.compile(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)))
    found = HiddenUnits().select(net, lambda: net(torch.randn(3, 4)))
    assert [layer.name for layer in found] == ["0"]


def test_units_that_go_into_frozen_or_shared_weights_are_left_alone():
    net = nn.Sequential(
        nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 2)
    )
    net[2].requires_grad_(False)
    selection = HiddenUnits().select(net, lambda: net(torch.ones(1, 3)))
    assert "goes into 2, which is frozen" in str(selection)
    assert [layer.name for layer in selection] == ["4"]
    norm = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
    norm[1].requires_grad_(False)
    assert "its normalization layer is frozen" in str(HiddenUnits().select(norm, lambda: norm(torch.ones(1, 3))))

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(7, 4)
            self.up, self.down, self.out = nn.Linear(4, 6), nn.Linear(6, 4), nn.Linear(4, 7)
            self.out.weight = self.embedding.weight

        def forward(self, x):
            return self.out(self.down(self.up(self.embedding(x)).relu()).relu())

    model = Tied()
    table = str(HiddenUnits().select(model, lambda: model(torch.tensor([1, 2]))))
    assert "goes into out, whose weight is shared with another module" in table
