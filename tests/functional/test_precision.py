"""No function computes in less precision, or on another device, because of a context around its call."""

import ast
import contextlib

import pytest
import torch
from function_cases import FUNCTIONS, arguments, name_of
from methods_table import made
from pages import ROOT
from torch import nn
from torch.utils._pytree import tree_leaves

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


def weights_after(method, context):
    """The weights after some steps with a method, which is made and acts within a context."""
    torch.manual_seed(0)
    model = nn.Sequential()
    for name, layer in (
        ("first", nn.Linear(6, 8)),
        ("norm", nn.LayerNorm(8)),
        ("relu", nn.ReLU()),
        ("head", nn.Linear(8, 3)),
    ):
        model.add_module(name, layer)
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
