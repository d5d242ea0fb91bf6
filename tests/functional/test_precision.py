"""No function computes in less precision, or on another device, because of a context around its call."""

import ast
import contextlib
from collections import OrderedDict
from functools import partial

import pytest
import torch
from function_cases import FUNCTIONS, arguments, name_of
from methods_table import made
from pages import ROOT
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from lightning_fire import initial_values
from lightning_fire.methods import DASH, METHODS, EventMethod, Loop, ReDo
from lightning_fire.optim import UPGD, Muon


def computed(function, context):
    """What a function returns within a context, of arguments made outside of it."""
    given = arguments()[function]
    with context:
        return given(function) if callable(given) else function(*given)


def assert_same(one, other):
    for a, b in zip(tree_leaves(one), tree_leaves(other), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


CONTEXTS = {
    "bfloat16": lambda: torch.autocast("cpu", torch.bfloat16),
    "float16": lambda: torch.autocast("cpu", torch.float16),
    "device": lambda: torch.device("meta"),  # stands for any that a default device may be
}


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("function", FUNCTIONS, ids=name_of)
def test_contexts_change_no_function(function, context):
    assert_same(computed(function, CONTEXTS[context]()), computed(function, contextlib.nullcontext()))


def network():
    layers = {"first": nn.Linear(6, 8), "norm": nn.LayerNorm(8), "relu": nn.ReLU(), "head": nn.Linear(8, 3)}
    return nn.Sequential(OrderedDict(layers))


def weights_after(method, context):
    """The weights after some steps with a method, which is made and acts within a context."""
    torch.manual_seed(0)
    model = network()
    x, optimizer = torch.randn(8, 6), torch.optim.SGD(model.parameters(), 0.1)

    def loss():
        return model(x).square().mean()

    loop = Loop(optimizer, lambda: model(x), lambda: [loss() for _ in range(2)], initial_values(model))
    with context():
        at_work = None if isinstance(method(), EventMethod) else method().attach(model, loop)
    for _ in range(4):
        optimizer.zero_grad()
        loss().backward()
        if at_work is not None:
            with context():
                at_work.before_step(optimizer)
                at_work.metrics()
            optimizer.step()
            with context():
                at_work.after_step()
                at_work.load_state_dict(at_work.state_dict())
        else:
            optimizer.step()
    if at_work is None:
        with context():
            method()(model, loop)
    return model.state_dict()


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("kind", METHODS, ids=lambda kind: kind.name)
def test_contexts_change_no_method(kind, context):
    if context == "device" or kind not in (DASH, ReDo):  # whose forward passes run within the context
        plain = weights_after(lambda: made(kind, "head"), contextlib.nullcontext)
        assert_same(weights_after(lambda: made(kind, "head"), CONTEXTS[context]), plain)


IN_THEIR_DTYPE = {"dormancy_score", "dormant", "dormant_fraction", "feature_covariance_shift_of", "srank_of"}
"""Functions of activations, which the methods call with float32, and those with a tolerance of the dtype."""
WITH_VECTORS = {"power_iteration", "spectral_gradient", "spectral_penalty"}


@pytest.mark.parametrize("function", [f for f in FUNCTIONS if f.__name__ not in IN_THEIR_DTYPE], ids=name_of)
def test_bfloat16_is_computed_in_float32(function):
    given = arguments()[function]
    if callable(given):
        pytest.skip("takes functions")

    def converted(dtype, value):
        return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value

    low = tree_map(partial(converted, torch.bfloat16), given)
    high = tree_map(partial(converted, torch.float32), low)
    if function.__name__ in WITH_VECTORS:  # an EMA in float32
        low = (low[0], *high[1:])
    for found, expected in zip(tree_leaves(function(*low)), tree_leaves(function(*high)), strict=True):
        assert_same(found, expected.to(found.dtype) if isinstance(found, torch.Tensor) else expected)


@pytest.mark.parametrize("kind", METHODS, ids=lambda kind: kind.name)
def test_averages_of_bfloat16_are_in_float32(kind):
    method = made(kind, "head")
    if isinstance(method, EventMethod) or kind.name == "l2_init":  # whose targets are former values
        return
    model = network().to(torch.bfloat16)
    x, optimizer = torch.randn(8, 6, dtype=torch.bfloat16), torch.optim.SGD(model.parameters(), 0.1)
    at_work = method.attach(model, Loop(optimizer, lambda: model(x)))
    for _ in range(4):
        model(x).square().mean().backward()
        at_work.before_step(optimizer)
        optimizer.step()
        at_work.after_step()
    kept = [value for value in tree_leaves(at_work.state_dict()) if isinstance(value, torch.Tensor)]
    assert all(value.dtype in (torch.float32, torch.int64) for value in kept)


def test_the_utility_of_bfloat16_decays_and_is_restored():
    weight = nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    optimizer = UPGD([weight], lr=0.0, utility_decay=0.999, noise=0.0)
    weight.grad = -torch.ones_like(weight)
    optimizer.step()
    first = optimizer.state[weight]["utility"].clone()
    weight.grad = torch.zeros_like(weight)
    for _ in range(100):
        optimizer.step()
    torch.testing.assert_close(optimizer.state[weight]["utility"], first * 0.999**100)
    other = UPGD([weight])
    other.load_state_dict(optimizer.state_dict())
    assert_same(other.state[weight]["utility"], optimizer.state[weight]["utility"])


@pytest.mark.parametrize("kind", [Muon, UPGD])
def test_contexts_do_not_change_an_optimizer(kind):
    def stepped(context):
        torch.manual_seed(0)
        weight, bias = nn.Parameter(torch.randn(8, 6)), nn.Parameter(torch.randn(8))
        groups = [{"params": [weight], "use_muon": True}, {"params": [bias], "use_muon": False}]
        optimizer = kind(groups if kind is Muon else [weight, bias], lr=0.1)
        weight.grad, bias.grad = torch.randn(8, 6), torch.randn(8)
        with context:
            optimizer.step()
        return weight.detach(), bias.detach()

    plain = stepped(contextlib.nullcontext())
    assert_same(stepped(torch.autocast("cpu", torch.bfloat16)), plain)
    assert_same(stepped(torch.device("meta")), plain)


def test_every_draw_from_a_generator_names_its_device():
    draws = {"rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial"}
    found, nameless = 0, []
    files = set((ROOT / "lightning_fire").rglob("*.py")) - set((ROOT / "lightning_fire/recipe/template").rglob("*.py"))
    for file in sorted(files):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).removeprefix("torch.") in draws:
                keys = {keyword.arg for keyword in node.keywords}
                found += "generator" in keys
                if "generator" in keys and "device" not in keys:
                    nameless.append(f"{file.name}:{node.lineno}")
    assert found > 10
    assert nameless == []
