"""Penalties, decay and feature rank on models: compiled, partly frozen, in place, with several optimizers."""

import copy
from dataclasses import replace

import pytest
import reference
import torch
from torch import nn

from lightning_fire import Parameters, Weights
from lightning_fire.functional import parseval_gradient
from lightning_fire.methods import (
    IsometryDecay,
    L2Init,
    Loop,
    Parseval,
    RankAscent,
    SpectralRegularization,
    initial_values,
)

PENALTIES = {
    "l2_init": L2Init(strength=0.3),
    "parseval": Parseval(strength=0.3),
    "spectral": SpectralRegularization(strength=0.3),
}


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, 3))


X = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))


def gradients_with(penalty, net, compiled):
    model = torch.compile(net) if compiled else net
    method = penalty.attach(model, Loop(initial=initial_values(model)))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(1.5).add_(0.1)
    net(X).square().sum().backward()
    method.before_step()
    return {name: parameter.grad for name, parameter in net.named_parameters()}, method.metrics()["penalty"]


@pytest.mark.parametrize("name", PENALTIES)
def test_a_compiled_model_has_the_penalty_of_the_model_in_it(name):
    found, penalty = gradients_with(PENALTIES[name], network(), compiled=True)
    expected, same = gradients_with(PENALTIES[name], network(), compiled=False)
    assert penalty == same > 0
    assert all(torch.equal(found[key], gradient) for key, gradient in expected.items())


def slow_penalty(method, net, start, layers=(0, 3)):
    """Differentiable, of the weights of some layers, with what else belongs to them."""
    weights, rest = [net[i].weight for i in layers], [net[i].bias for i in layers]
    if isinstance(method, L2Init):
        rest += [net[1].weight, net[1].bias] if len(layers) > 1 else []
        names = {id(p): key for key, p in net.named_parameters()}
        return sum((p - start[names[id(p)]]).square().sum() for p in [*weights, *rest])
    if isinstance(method, Parseval):
        norms = (net[1].weight ** 2 - 1).square().sum() if method.norms else 0.0
        return sum(reference.parseval_penalty(w) for w in weights) + norms
    return sum((torch.linalg.matrix_norm(w, 2) ** 2 - 1) ** 2 for w in weights) + sum(b.norm() ** 4 for b in rest)


SOME = {"l2_init": Parameters(include=["^3"]), "parseval": Weights(include=["^3"]), "spectral": Weights(include=["^3"])}
OF_LAYERS = {
    **{name: (method, (0, 3)) for name, method in PENALTIES.items()},
    **{f"{name} of one": (replace(method, where=SOME[name]), (3,)) for name, method in PENALTIES.items()},
    "parseval with norms": (Parseval(0.3, norms=True), (0, 3)),
}


@pytest.mark.parametrize("name", OF_LAYERS)
def test_gradient_and_value_are_those_of_the_slow_penalty(name):
    (method, layers), net = OF_LAYERS[name], network()
    start = initial_values(net)
    attached = method.attach(net, Loop(initial=start))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(1.5).add_(0.1)
    for _ in range(50):  # in which the estimates of singular vectors converge
        net.zero_grad()
        net(X).square().sum().backward()
        plain = [parameter.grad.clone() for parameter in net.parameters()]
        attached.before_step()
    expected = slow_penalty(method, net, start, layers)
    added = torch.autograd.grad(expected, list(net.parameters()), allow_unused=True)
    for parameter, grad, own in zip(net.parameters(), plain, added, strict=True):
        more = torch.zeros_like(grad) if own is None else own
        torch.testing.assert_close(parameter.grad, grad + 0.3 * more, rtol=1e-4, atol=1e-4)
    assert attached.metrics()["penalty"] == pytest.approx(0.3 * expected.item(), rel=1e-4)


@pytest.mark.parametrize("name", PENALTIES)
def test_an_optimizer_gets_the_penalty_of_its_own_parameters(name):
    net = network()
    attached = PENALTIES[name].attach(net, Loop(initial=initial_values(net)))
    for parameter in net.parameters():
        parameter.data.mul_(1.5)
        parameter.grad = torch.zeros_like(parameter)
    attached.before_step(torch.optim.SGD(net[3].parameters(), 0.1))
    assert [net[i].weight.grad.any().item() for i in (0, 3)] == [False, True]


def test_fused_transposed_and_grouped_weights_are_penalised_as_the_matrices_they_are():
    parts = {"attention": nn.MultiheadAttention(4, 2), "grouped": nn.Conv2d(4, 6, 3, groups=2)}
    net = nn.ModuleDict({**parts, "up": nn.ConvTranspose1d(5, 3, 2), "other": nn.Linear(3, 3)})
    where = Weights(preset="cnn", include=[r"in_proj_weight\[[qk]\]", "grouped", "up"])
    for parameter in net.parameters():
        parameter.grad = torch.zeros_like(parameter)
    Parseval(0.5, where=where).attach(net).before_step()
    found = {name: parameter.grad for name, parameter in net.named_parameters()}
    net.zero_grad()
    query, key, _ = net["attention"].in_proj_weight.chunk(3)
    total = sum(reference.parseval_penalty(part) for part in (query, key, net["up"].weight.transpose(0, 1)))
    (0.5 * (total + reference.parseval_penalty(net["grouped"].weight, groups=2))).backward()
    for name, parameter in net.named_parameters():
        torch.testing.assert_close(
            found[name], torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        )


class Scaled(nn.Linear):
    """Has a vector that is not a bias, and a bias that is not a vector."""

    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.gain = nn.Parameter(torch.ones(outputs))
        self.table_bias = nn.Parameter(torch.ones(outputs, 2))


def test_spectral_regularization_is_on_the_trained_biases_of_its_weights():
    net = nn.ModuleDict(
        {
            "plain": nn.Linear(3, 3),
            "frozen_bias": nn.Linear(3, 3),
            "frozen_weight": nn.Linear(3, 3),
            "norm": nn.LayerNorm(3),
            "scaled": Scaled(3, 3),
            "none": nn.Linear(3, 3, bias=False),
            "attention": nn.MultiheadAttention(4, 2, add_bias_kv=True),
            "recurrent": nn.GRU(3, 3),
        }
    )
    net["frozen_bias"].bias.requires_grad_(False)
    net["frozen_weight"].weight.requires_grad_(False)
    where = Weights(preset="cnn", vectors=True, layers={nn.GRU: "gates"})
    found = SpectralRegularization(strength=1.0, where=where).attach(net).parameters
    expected = {"plain.weight", "plain.bias", "frozen_bias.weight", "scaled.weight", "scaled.bias", "none.weight"}
    attention = {f"attention.{name}" for name in ("in_proj_weight", "in_proj_bias", "bias_k", "bias_v")}
    recurrent = {f"recurrent.{kind}_{way}_l0" for kind in ("weight", "bias") for way in ("ih", "hh")}
    output = {"attention.out_proj.weight", "attention.out_proj.bias"}
    parameters = dict(net.named_parameters())
    assert {id(parameter) for parameter in found.values()} == {
        id(parameters[name]) for name in expected | attention | recurrent | output
    }


def test_isometry_decay_moves_what_its_optimizer_steps_by_its_learning_rate():
    net = nn.Sequential(*(nn.Linear(3, 3) for _ in range(5)))
    for index in (0, 1, 2, 4):  # the fourth layer has no gradient
        net[index].weight.grad = torch.ones(3, 3)
    groups = [{"params": net[0].parameters(), "lr": 0.1}, {"params": [net[1].weight, net[3].weight], "lr": 0.02}]
    optimizer = torch.optim.SGD(groups, lr=1.0)
    torch.optim.SGD(net[2].parameters(), lr=1.0)  # of another optimizer
    before = copy.deepcopy(net)
    IsometryDecay(strength=0.7).attach(net).before_step(optimizer)
    for index, rate in enumerate((0.1, 0.02, 0.0, 0.0, 0.0)):
        weight = before[index].weight.detach()
        expected = weight - rate * 0.7 * parseval_gradient(weight)
        torch.testing.assert_close(net[index].weight.detach(), expected, rtol=1e-6, atol=1e-7)
        assert torch.equal(net[index].bias, before[index].bias)
        assert torch.equal(net[index].weight, weight) == (rate == 0.0)


class Raised(nn.Module):
    def __init__(self, in_place):
        super().__init__()
        self.in_place = in_place

    def forward(self, x):
        return x.add_(1.0) if self.in_place else x + 1.0


@pytest.mark.parametrize("looks", [0, 2])
def test_the_features_are_those_before_the_network_changes_them_in_place_and_with_gradients(looks):
    """Passes under `no_grad` do not count."""

    def stepped(in_place, looks):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 6), nn.GELU(), Raised(in_place), nn.Linear(6, 5), nn.GELU(), nn.Linear(5, 3))

        def forward():
            for _ in range(looks):
                with torch.no_grad():
                    net(10 * X)
            net(X)

        method = RankAscent(net, lambda: net(X), lr=0.1)
        return method.step(forward), method.step(forward), net

    first, second, net = stepped(True, looks)
    expected = stepped(False, 0)
    assert (first, second) == expected[:2]
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), expected[2].parameters(), strict=True))


class WithUnusedHead(nn.Module):
    """One of its heads has no gradient."""

    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(4, 3), nn.Linear(4, 2)

    def forward(self, x):
        return self.used(x)


def test_the_gradient_of_a_parameter_without_one_is_that_of_the_penalty_alone():
    net = WithUnusedHead()
    method, start = L2Init(0.1).attach(net, Loop(initial=initial_values(net))), copy.deepcopy(net)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(1.0)
    net(X).square().sum().backward()
    own = net.used.weight.grad.clone()
    method.before_step()
    assert all(torch.allclose(p.grad, torch.full_like(p, 2 * 0.1)) for p in net.unused.parameters())
    expected = own + 2 * 0.1 * (net.used.weight - start.used.weight)
    torch.testing.assert_close(net.used.weight.grad, expected.detach())


def test_isometry_decay_moves_weights_of_one_row_and_of_one_column():
    net = nn.Sequential(nn.Linear(1, 4), nn.ReLU(), nn.Linear(4, 1))
    optimizer, before = torch.optim.SGD(net.parameters(), lr=0.01), copy.deepcopy(net)
    net(X[:, :1]).sum().backward()
    IsometryDecay(0.1).attach(net, Loop(optimizer)).before_step(optimizer)
    for index in (0, 2):
        weight = before[index].weight.detach()
        short = weight if weight.shape[0] <= weight.shape[1] else weight.mT
        moved = short - 0.01 * 0.1 * 4 * (short @ short.mT - 1) @ short
        torch.testing.assert_close(net[index].weight.detach(), moved if short is weight else moved.mT)
        assert not torch.equal(net[index].weight, weight)
