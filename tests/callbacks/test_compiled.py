"""Every method changes a compiled network as it changes a plain one, also if compiled before the fit."""

import pytest
import torch
from methods_table import ALL, callback_of
from small_training import OwnSequential, PlainModule, assert_same_weights, dataset, fitted
from torch import nn

from lightning_fire import (
    ContinualBackprop,
    Loop,
    PlasticityCallback,
)

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _nothing_compiled():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def run(method, compiled: bool, epochs: int = 6) -> PlainModule:
    torch.manual_seed(0)
    module = PlainModule()
    module.net = OwnSequential(*module.net)
    if compiled:
        module.net.compile(backend="eager")
    module.net(dataset().tensors[0][:6]).sum().backward()
    module.zero_grad()
    fitted(*[] if method is None else [method], module=module, max_epochs=epochs)
    return module


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch 2.15's, of parts compiled behind a hook
@pytest.mark.parametrize("name", ALL)
def test_a_compiled_network_ends_with_the_weights_of_a_plain_one(name):
    methods = callback_of(name), callback_of(name)
    plain, compiled = run(methods[0], compiled=False), run(methods[1], compiled=True)
    assert_same_weights(plain, compiled)
    untouched = run(None, compiled=False)
    assert any(
        name not in untouched.state_dict() or not torch.equal(value, untouched.state_dict()[name])
        for name, value in plain.state_dict().items()
    )  # the method did something


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # by torch at a graph break
def test_a_later_fit_without_the_method_equals_a_plain_one():
    modules = [run(PlasticityCallback(ContinualBackprop(0.2, maturity=2)), compiled) for compiled in (False, True)]
    for module in modules:
        fitted(module=module)
    assert_same_weights(*modules)


class Broken(nn.Module):
    """Its graph breaks in a function of its own, which is compiled apart, before the layer that is watched."""

    def __init__(self):
        super().__init__()
        self.first, self.relu, self.last = nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)

    def forward(self, x):
        return apart(self.last, self.relu(self.first(x)))


def apart(layer, x):
    torch._dynamo.graph_break()
    return layer(x)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # by torch at a graph break
@pytest.mark.parametrize("how", ["module", "wrapper", "layers"])
@pytest.mark.parametrize("network", [Broken, lambda: OwnSequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))])
def test_hooks_run_in_code_compiled_before_and_other_compiled_code_stays(network, how, monkeypatch):
    model, x, compiled = network(), torch.ones(4, 6), []

    def backend(graph, inputs):
        compiled.append(graph)
        return graph.forward

    other = torch.compile(lambda x: x * 2 + 1, backend=backend)
    other(x)
    run = model
    if how == "wrapper":
        run = torch.compile(model, backend="eager")
    for part in model.children() if how == "layers" else ():
        part.compile(backend="eager")
    if how == "module":
        model.compile(backend="eager")
    run(x)
    monkeypatch.delattr(torch.compiler, "reset")
    method = ContinualBackprop().attach(run, Loop(forward=lambda: run(x)))
    for number in (1, 2):
        run(x)
        assert method.statistics[0].count == 4 * number
    method.close()
    run(x)
    assert method.statistics[0].count == 8
    assert not any("forward" in vars(part) for part in model.modules())
    other(x)
    assert len(compiled) == 1
