"""Every method changes a compiled network as it changes a plain one, also if compiled before the fit."""

import pytest
import torch
from small_training import OwnSequential, PlainModule, assert_same_weights, dataset, fitted

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
    PlasticityInjection,
    ReDo,
    SelfNormalizedReset,
    ShrinkAndPerturb,
    SpectralRegularization,
    WeightProjection,
)

pytestmark = pytest.mark.slow

METHODS = {
    "continual_backprop": lambda: ContinualBackprop(0.2, maturity=2),
    "dash": lambda: DASH(num_batches=2),
    "feature_rank": lambda: FeatureRank(0.1),
    "fire": lambda: FIRECallback(),
    "full_reset": lambda: FullReset(),
    "isometry_decay": lambda: IsometryDecay(0.1),
    "hare_and_tortoise": lambda: HareAndTortoise(EveryNEpochs(2), momentum=0.7),
    "l2_init": lambda: L2Init(0.1),
    "parseval": lambda: Parseval(0.1),
    "plasticity_injection": lambda: PlasticityInjection("net.5"),
    "redo": lambda: ReDo(EveryNEpochs(1), threshold=0.7),
    "redo_gradient": lambda: ReDo(EveryNEpochs(1), threshold=0.7, score="gradient"),
    "redo_pre_activation": lambda: ReDo(EveryNEpochs(1), threshold=0.7, score="pre_activation"),
    "shrink_and_perturb": lambda: ShrinkAndPerturb(strength=0.5),
    "spectral": lambda: SpectralRegularization(0.1),
    "snr": lambda: SelfNormalizedReset(rejection=0.9, refresh_every=2, max_silence=20),
    "continual_backprop_pre_activation": lambda: ContinualBackprop(0.2, maturity=2, score="pre_activation"),
    "snr_pre_activation": lambda: SelfNormalizedReset(0.9, refresh_every=2, max_silence=20, score="pre_activation"),
    "weight_projection": lambda: WeightProjection(),
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
    modules = [run(ContinualBackprop(0.2, maturity=2), compiled) for compiled in (False, True)]
    for module in modules:
        fitted(module=module)
    assert_same_weights(*modules)
