"""No function computes in less precision, or on another device, because of a context around its call."""

import ast
import contextlib

import pytest
import torch
from methods_table import made
from pages import ROOT
from torch import nn
from torch.utils._pytree import tree_leaves

from lightning_fire import functional, initial_values
from lightning_fire.methods import DASH, METHODS, EventMethod, Loop, ReDo
from lightning_fire.optim import UPGD, Muon


def arguments():
    """Arguments of every public function."""
    torch.manual_seed(0)
    wide, tall, square = torch.randn(200, 300), torch.randn(64, 40), torch.randn(64, 64)
    spd = tall.mT @ tall
    vector = nn.functional.normalize(torch.randn(1, 40))
    dfis, ints, bias = torch.tensor([0.1, 0.2]), torch.randint(1, 50, (6, 20)), torch.randn(64)
    losses = torch.randn(40, requires_grad=True)

    loss = nn.functional.softplus(tall @ losses).square().mean()
    functions = functional
    return {
        functions.activity_score_bounds: (torch.tensor(0.3),),
        functions.as_matrices: (tall,),
        functions.bias_gradient: (bias,),
        functions.bias_penalty: (bias,),
        functions.contribution_utility: (bias.abs(), bias),
        functions.critical_sharpness: lambda f: f(lambda step: (step - 1.0) ** 2, -2.0),
        functions.dash: (tall, tall + 1, 0.3),
        functions.dfi: (wide,),
        functions.dfi_normalized: (wide,),
        functions.dfi_without_dormancy: (0.1,),
        functions.dormancy_score: (tall.abs(),),
        functions.dormant: (tall.abs(), 0.9),
        functions.dormant_fraction: (tall.abs(), 0.9),
        functions.entropy_rank: (wide,),
        functions.entropy_rank_gradient: (wide,),
        functions.entropy_rank_of: (bias.abs(),),
        functions.feature_covariance_bound: ([square, square], [square + 0.1, square], 1.0, 1.0),
        functions.feature_covariance_shift: (tall, tall + 1),
        functions.feature_covariance_shift_of: (spd, spd + 1, spd),
        functions.fire: (wide,),
        functions.hessian_bound: (dfis, 1.0, 0.5),
        functions.hessian_product: lambda f: f(loss, [losses])(bias[:40]),
        functions.inter_firing_threshold: (ints, torch.full((6,), 9), 0.1),
        functions.l2_init_gradient: (tall, tall + 1),
        functions.l2_init_penalty: (tall, tall + 1),
        functions.largest_eigenvalue: lambda f: f(lambda v: spd @ v, bias[:40]),
        functions.least_useful: (bias, bias > 0, 3),
        functions.loss_curvature: lambda f: f(loss, [losses]),
        functions.muon_direction: (tall,),
        functions.optimization_readiness: (tall,),
        functions.optimization_readiness_of: (vector, torch.tensor(9.0), 3),
        functions.orthogonalize: (wide,),
        functions.parseval_gradient: (tall,),
        functions.parseval_penalty: (tall,),
        functions.polar: (wide,),
        functions.power_iteration: (tall, vector),
        functions.project_to_norm: (tall, 3.0),
        functions.relu_hessian_bound: (dfis, 1.0, 0.5, 64.0),
        functions.sfe: (tall, tall + 1),
        functions.sfe_normalized: (tall, tall + 1),
        functions.shrink_and_perturb: (tall, tall + 1, 0.3),
        functions.singular_values: (wide,),
        functions.singular_values_of_gram: (spd,),
        functions.spectral_gradient: (tall, vector),
        functions.spectral_penalty: (tall, vector),
        functions.srank: (wide,),
        functions.srank_bound: (dfis[0], 40),
        functions.srank_of: (bias.abs().sort(descending=True).values,),
        functions.stable_rank: (wide,),
        functions.stable_rank_of: (bias.abs(),),
        functions.unit_scale_gradient: (bias,),
        functions.unit_scale_penalty: (bias,),
    }


def name_of(function):
    return function.__name__


FUNCTIONS = sorted(
    {each for name in functional.__all__ if callable(each := getattr(functional, name)) and not isinstance(each, type)},
    key=name_of,
)


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
        weight = nn.Parameter(torch.randn(8, 6))
        groups = [{"params": [weight], "use_muon": True}] if kind is Muon else [weight]
        optimizer = kind(groups, lr=0.1)
        weight.grad = torch.randn(8, 6)
        with context:
            optimizer.step()
        return weight.detach()

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
