"""What plain functions change: values, and with them optimizer state; frozen parameters and statistics stay."""

import copy

import pytest
import torch
from reference import dash as slow_dash
from reference import fire as slow_fire
from reference import shrink_and_perturb as slow_shrink
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from lightning_fire.methods import DASH, dash_, fire_, fresh_values, full_reset_, isometric_values, shrink_and_perturb_
from lightning_fire.where import Parameters, Weights

FROZEN = ("3.bias", "4.weight")


def network() -> nn.Sequential:
    """With BatchNorm, a grouped convolution, a frozen bias and a frozen norm scale."""
    torch.manual_seed(0)
    convolutions = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 2, groups=2), nn.BatchNorm2d(4)
    net = nn.Sequential(*convolutions, nn.ReLU(), nn.Flatten(), nn.Linear(16, 5), nn.ReLU(), nn.Linear(5, 3))
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(name not in FROZEN)
    return net


X, Y = torch.randn(24, 2, 5, 5, generator=torch.Generator().manual_seed(1)), torch.arange(24) % 3


def losses(net, number=3):
    return (F.cross_entropy(net(x), y) for x, y in list(zip(X.split(8), Y.split(8), strict=True))[:number])


FUNCTIONS = {
    "fire": lambda net, **how: fire_(net, Weights(preset="cnn"), **how),
    "fire on two": lambda net, **how: fire_(net, Weights(include=["^3", "^9"]), **how),
    "shrink_and_perturb": lambda net, **how: shrink_and_perturb_(net, fresh_values(net, seed=3), **how),
    "shrink_and_perturb of weights": lambda net, **how: shrink_and_perturb_(
        net, fresh_values(net, seed=3), where=Parameters(include=["weight"]), **how
    ),
    "full_reset": lambda net, **how: full_reset_(net, fresh_values(net, seed=3), **how),
    "full_reset of the head": lambda net, **how: full_reset_(
        net, fresh_values(net, seed=3), where=Parameters(include=["^9"]), **how
    ),
    "dash": lambda net, **how: dash_(net, losses(net), **how),
    "dash on two": lambda net, **how: dash_(net, losses(net), where=Weights(include=["^0", "^7"]), **how),
}


def trained(build=torch.optim.Adam):
    net = network()
    optimizer = build([p for p in net.parameters() if p.requires_grad], lr=1e-2)
    for loss in losses(net):
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():  # a fresh draw of these is their present value
        for name, parameter in net.named_parameters():
            if name not in FROZEN:
                parameter.add_(0.01)
    return net, optimizer


@pytest.mark.parametrize("policy", ["touched", "keep", "all"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_state_of_what_is_changed_is_dropped_and_no_other(name, policy):
    net, optimizer = trained()
    before, state = copy.deepcopy(net.state_dict()), copy.deepcopy(optimizer.state_dict()["state"])
    FUNCTIONS[name](net, optimizers=optimizer, optimizer_state=policy)
    trainable = {key: parameter for key, parameter in net.named_parameters() if parameter.requires_grad}
    changed = {key for key in trainable if not torch.equal(before[key], trainable[key])}
    assert changed and (len(changed) < len(trainable) or name in ("shrink_and_perturb", "full_reset"))
    kept = {key for key, parameter in trainable.items() if parameter in optimizer.state}
    assert kept == {"touched": set(trainable) - changed, "keep": set(trainable), "all": set()}[policy]
    for index, key in enumerate(trainable):
        if key in kept:
            for entry, value in optimizer.state[trainable[key]].items():
                assert torch.equal(value, state[index][entry])
    for key in FROZEN:
        assert torch.equal(before[key], net.state_dict()[key])
    if "full_reset" not in name and name != "shrink_and_perturb":
        for key, buffer in net.named_buffers():
            assert torch.equal(before[key], buffer), key


@pytest.mark.parametrize("how", [{}, {"strength": 0.3}, {"strength": 0.6, "perturb": 0.1}])
def test_shrink_and_perturb_equals_the_slow_version(how):
    net, _ = trained()
    before, target = copy.deepcopy(net.state_dict()), fresh_values(net, seed=3)
    shrink_and_perturb_(net, target, **how)
    acting = {key for key, _ in net.named_parameters()} - {*FROZEN}
    for key, value in net.state_dict().items():
        if key in acting:
            slow = slow_shrink(before[key], target[key], how.get("strength", 0.8), how.get("perturb"))
            torch.testing.assert_close(value, slow.to(value.dtype), rtol=1e-5, atol=1e-7, msg=key)
        else:
            assert torch.equal(value, before[key]), key


def test_dash_equals_the_slow_version_with_frozen_biases_and_norms():
    alpha, minimum = 0.4, 0.2
    net, _ = trained()
    slow, directions = copy.deepcopy(net), {}
    for loss in losses(slow):
        named = {key: parameter for key, parameter in slow.named_parameters() if parameter.requires_grad}
        for key, gradient in zip(named, torch.autograd.grad(loss, named.values()), strict=True):
            directions[key] = (1 - alpha) * directions.get(key, 0.0) - alpha * gradient
    before = copy.deepcopy(net.state_dict())
    dash_(net, losses(net), alpha=alpha, minimum=minimum)
    for key, value in net.state_dict().items():
        acts = key.split(".")[0] in ("0", "3", "7", "9") and key not in FROZEN
        expected = slow_dash(before[key], directions[key], minimum) if acts else before[key]
        torch.testing.assert_close(value, expected.to(value.dtype), rtol=1e-5, atol=1e-7, msg=key)
        assert torch.equal(value, before[key]) != acts, key
    assert all(parameter.requires_grad == (key not in FROZEN) for key, parameter in net.named_parameters())
    assert all(parameter.grad is None for key, parameter in net.named_parameters() if key in FROZEN)


def test_how_many_batches_dash_uses():
    assert DASH(alpha=0.3).batches == 26
    assert DASH(alpha=0.1).batches == 88
    assert DASH(alpha=1.0).batches == 1
    for alpha in (0.1, 0.3):
        assert (1 - alpha) ** DASH(alpha=alpha).batches <= 1e-4 < (1 - alpha) ** (DASH(alpha=alpha).batches - 1)


@pytest.mark.parametrize("scale", ["paper", "procrustes"])
def test_isometric_values_are_those_of_fire_by_group(scale):
    net = network()
    values = dict(net.state_dict())
    kept = copy.deepcopy(values)
    found = isometric_values(net, values, where=Weights(preset="cnn"), scale=scale)
    assert set(found) == set(values)
    for key, value in found.items():
        weight = key in ("0.weight", "3.weight", "7.weight", "9.weight")
        expected = slow_fire(kept[key], scale=scale, groups=2 if key == "3.weight" else 1) if weight else kept[key]
        torch.testing.assert_close(value, expected.to(value.dtype), rtol=1e-4, atol=1e-5, msg=key)
        assert torch.equal(values[key], kept[key]), key
    assert not torch.allclose(found["3.weight"], slow_fire(kept["3.weight"], scale=scale).float(), atol=1e-3)


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradients_within_checkpoints(reentrant):
    """Reentrant ones hide them from everything but `backward`."""
    layer, x = nn.Linear(4, 4), torch.randn(3, 4, requires_grad=True)
    loss = checkpoint(layer, x, use_reentrant=reentrant).square().mean()
    before = layer.weight.clone()
    if reentrant:
        with pytest.raises(ValueError, match=r"no gradient with respect to any of the weights: .*use_reentrant=False"):
            dash_(layer, [loss])
        assert torch.equal(layer.weight, before)
    else:
        dash_(layer, [loss])
        assert not torch.equal(layer.weight, before)
