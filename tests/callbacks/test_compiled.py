"""Every method changes a compiled network as it changes a plain one, also if compiled before the fit."""

import pytest
import torch
from small_training import OwnSequential, PlainModule, assert_same_weights, dataset, fitted
from torch import nn

from lightning_fire import (
    DASH,
    ContinualBackprop,
    EveryNEpochs,
    FeatureRank,
    FIRECallback,
    FullReset,
    HareAndTortoise,
    IsometryDecay,
    L2Init,
    Parseval,
    PlasticityCallback,
    PlasticityInjection,
    ReDo,
    SelfNormalizedReset,
    ShrinkAndPerturb,
    SpectralRegularization,
    WeightProjection,
    methods,
)

pytestmark = pytest.mark.slow

METHODS = {
    "continual_backprop": lambda: PlasticityCallback(ContinualBackprop(0.2, maturity=2)),
    "dash": lambda: PlasticityCallback(DASH(num_batches=2)),
    "feature_rank": lambda: FeatureRank(0.1),
    "fire": lambda: FIRECallback(),
    "full_reset": lambda: PlasticityCallback(FullReset()),
    "isometry_decay": lambda: PlasticityCallback(IsometryDecay(0.1)),
    "hare_and_tortoise": lambda: HareAndTortoise(EveryNEpochs(2), momentum=0.7),
    "l2_init": lambda: PlasticityCallback(L2Init(0.1)),
    "parseval": lambda: PlasticityCallback(Parseval(0.1)),
    "plasticity_injection": lambda: PlasticityCallback(PlasticityInjection("net.5")),
    "redo": lambda: PlasticityCallback(ReDo(threshold=0.7), EveryNEpochs(1)),
    "redo_gradient": lambda: PlasticityCallback(ReDo(threshold=0.7, score="gradient"), EveryNEpochs(1)),
    "redo_pre_activation": lambda: PlasticityCallback(ReDo(threshold=0.7, score="pre_activation"), EveryNEpochs(1)),
    "shrink_and_perturb": lambda: PlasticityCallback(ShrinkAndPerturb(strength=0.5)),
    "spectral": lambda: PlasticityCallback(SpectralRegularization(0.1)),
    "snr": lambda: PlasticityCallback(SelfNormalizedReset(rejection=0.9, refresh_every=2, max_silence=20)),
    "continual_backprop_pre_activation": lambda: PlasticityCallback(
        ContinualBackprop(0.2, maturity=2, score="pre_activation")
    ),
    "snr_pre_activation": lambda: PlasticityCallback(
        SelfNormalizedReset(0.9, refresh_every=2, max_silence=20, score="pre_activation")
    ),
    "weight_projection": lambda: PlasticityCallback(WeightProjection()),
}


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
@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_compiled_network_ends_with_the_weights_of_a_plain_one(name):
    methods = METHODS[name](), METHODS[name]()
    plain, compiled = run(methods[0], compiled=False), run(methods[1], compiled=True)
    assert_same_weights(plain, compiled)
    untouched = run(None, compiled=False)
    assert any(
        name not in untouched.state_dict() or not torch.equal(value, untouched.state_dict()[name])
        for name, value in plain.state_dict().items()
    )  # the method did something


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
    method = methods.ContinualBackprop(run, lambda: run(x))
    for number in (1, 2):
        run(x)
        assert method.statistics[0].count == 4 * number
    method.close()
    run(x)
    assert method.statistics[0].count == 8
    assert not any("forward" in vars(part) for part in model.modules())
    other(x)
    assert len(compiled) == 1
