"""`WeightClipping` and `SoftWeightRescaling` against loops over weights, on plain models and through a real fit."""

import copy
import itertools
import math
from functools import partial

import lightning.pytorch as pl
import pytest
import torch
from small_training import fitted, initial_state, state_of
from torch import nn

from lightning_fire import PlasticityCallback, SoftWeightRescaling, WeightClipping, Weights
from lightning_fire.functional import soft_rescaling
from lightning_fire.nets import GPT

NORMS = nn.BatchNorm2d | nn.LayerNorm
PLACES = [((), "trained"), *itertools.product([(0,), (0, 3), (3,)], ["trained", "frozen", "none"])]


def network(*norms, scale="trained"):
    """Two convolutions and two Linear layers with large weights, and normalization layers behind some."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 4, 3), nn.Conv2d(4, 4, 3, groups=2), nn.Flatten(), nn.Linear(16, 8), nn.Linear(8, 3)]
    for position in sorted(norms, reverse=True):
        norm = nn.BatchNorm2d(4, affine=scale != "none") if position < 2 else nn.LayerNorm(8, 1e-5, scale != "none")
        layers.insert(position + 1, norm.requires_grad_(scale == "trained"))
    return nn.Sequential(
        *(each for layer in layers for each in ([layer, nn.ReLU()] if layer is not layers[-1] else [layer]))
    )


X = torch.randn(5, 2, 6, 6, generator=torch.Generator().manual_seed(1))


def grown(model, seed=3):
    """Multiply each parameter by a factor between 1 and 4, as training does."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1 + 3 * torch.rand((), generator=generator)).add_(0.1)
    return model


@pytest.mark.parametrize("bound", [0.5, 1.0, 2.0])
def test_clipped_weights_are_those_of_a_loop_over_entries(bound):
    model = grown(network(0, 3))
    clipping = WeightClipping(bound).attach(model)
    before = copy.deepcopy(model)
    clipping.after_step()
    fan_in, clipped = 0, 0
    for (name, new), old in zip(model.named_parameters(), before.parameters(), strict=True):
        if isinstance(model.get_submodule(name.partition(".")[0]), NORMS):
            assert torch.equal(new, old)
            continue
        fan_in = old[0].numel() if old.ndim > 1 else fan_in  # a bias has that of its weight
        limit = bound / math.sqrt(fan_in)
        expected = [max(min(value, limit), -limit) for value in old.flatten().tolist()]
        torch.testing.assert_close(new.flatten(), torch.tensor(expected), rtol=1e-6, atol=0)
        clipped += int((new != old).sum())
    assert clipped > 20


IN_PROJECTIONS = {"in_proj_weight": 6, "in_proj_bias": 6, "bias_k": 6, "bias_v": 6}
OUT_PROJECTION = {"out_proj.weight": 6, "out_proj.bias": 6}
RECURRENT = {
    f"{kind}_{of}_l{layer}": inputs
    for layer, widths in enumerate([(3, 9), (9, 9)])
    for kind in ("weight", "bias")
    for of, inputs in zip(("ih", "hh"), widths, strict=True)
}
FAN_INS = {  # the number of inputs of each weight and bias
    "attention": (lambda: nn.MultiheadAttention(6, 2, add_bias_kv=True), IN_PROJECTIONS | OUT_PROJECTION),
    "attention without biases": (
        lambda: nn.MultiheadAttention(6, 2, bias=False),
        {"in_proj_weight": 6, "out_proj.weight": 6},
    ),
    "attention of other widths": (
        lambda: nn.MultiheadAttention(6, 2, add_bias_kv=True, kdim=5, vdim=3),
        {
            **{"q_proj_weight": 6, "k_proj_weight": 5, "v_proj_weight": 3, "bias_k": 5, "bias_v": 3},
            "in_proj_bias": [6] * 6 + [5] * 6 + [3] * 6,
            **OUT_PROJECTION,
        },
    ),
    "LSTM": (lambda: nn.LSTM(3, 9, num_layers=2), RECURRENT),
    "GRU": (lambda: nn.GRU(3, 9, num_layers=2), RECURRENT),
    "GRU cell": (lambda: nn.GRUCell(3, 9), {"weight_ih": 3, "bias_ih": 3, "weight_hh": 9, "bias_hh": 9}),
    "LSTM with a projection": (
        lambda: nn.LSTM(3, 9, proj_size=2),
        {"weight_ih_l0": 3, "bias_ih_l0": 3, "weight_hh_l0": 2, "bias_hh_l0": 2, "weight_hr_l0": 9},
    ),
    "depthwise": (lambda: nn.Conv2d(6, 6, 3, groups=6), {"weight": 9, "bias": 9}),
    "transposed": (lambda: nn.ConvTranspose2d(4, 6, 3), {"weight": 54, "bias": 54}),
    "transposed, grouped": (lambda: nn.ConvTranspose1d(4, 6, 2, groups=2), {"weight": 6, "bias": 6}),
}


@pytest.mark.parametrize("name", FAN_INS)
def test_the_biases_of_every_kind_of_layer_are_clipped_as_their_weights(name):
    make, fan_ins = FAN_INS[name]
    model = make()
    generator = torch.Generator().manual_seed(0)
    for p in model.parameters():
        p.data = torch.randn(p.shape, generator=generator)
    before = state_of(model)
    assert fan_ins.keys() == before.keys()
    WeightClipping(0.5).attach(model).after_step()
    for key, value in model.state_dict().items():
        numbers = fan_ins[key] if isinstance(fan_ins[key], list) else [fan_ins[key]] * value.numel()
        pairs = zip(before[key].flatten().tolist(), numbers, strict=True)
        expected = [max(min(old, 0.5 / math.sqrt(number)), -0.5 / math.sqrt(number)) for old, number in pairs]
        torch.testing.assert_close(value.flatten(), torch.tensor(expected), rtol=1e-6, atol=0)
        assert not torch.equal(value, before[key]), key


def test_only_the_biases_of_selected_and_trained_weights_are_clipped():
    attention = nn.MultiheadAttention(6, 2, kdim=5, vdim=3, add_bias_kv=True)
    attention.bias_k.requires_grad_(False)
    for p in attention.parameters():
        p.data.fill_(2.0)
    WeightClipping(where=Weights(preset="cnn", include=["k_proj"])).attach(attention).after_step()
    assert attention.in_proj_bias.tolist() == pytest.approx([2.0] * 6 + [1 / math.sqrt(5)] * 6 + [2.0] * 6)
    clipped = {name for name, p in attention.named_parameters() if p.min() < 2}
    assert clipped == {"k_proj_weight", "in_proj_bias"}


def test_the_weight_of_an_embedding_that_is_the_head_is_clipped():
    net = GPT(vocab_size=16, block_size=8, depth=1, heads=2, dim=8)
    net.lm_head.weight.data.fill_(100.0)  # the same parameter as that of the embedding
    WeightClipping(2.0).attach(net).after_step()
    assert net.lm_head.weight.unique().tolist() == pytest.approx([2 / math.sqrt(8)])


def test_new_layers_of_torch_are_within_the_bound():
    model = nn.Sequential(network(), nn.Conv2d(6, 6, 3, groups=6), nn.ConvTranspose2d(4, 6, 3, groups=2))
    before = state_of(model)
    WeightClipping(1.0).attach(model).after_step()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=1e-6, atol=0)


def by_a_loop(model, initial, strength, classifier=None):
    """Rescale a model layer by layer, with factors multiplied from the normalization layer before on, in float64."""
    last = max((i for i, layer in enumerate(model) if isinstance(layer, NORMS)), default=-1)
    product = 1.0
    result = []
    for i, layer in enumerate(model):
        product = 1.0 if isinstance(layer, NORMS) else product
        if i not in initial:
            continue
        norm, factor = layer.weight.double().norm().item(), 1.0
        if layer.weight.requires_grad:
            own = strength if classifier is None or i <= last else classifier
            factor = (own * initial[i] + (1 - own) * norm) / norm
        product *= factor
        result += [layer.weight.double() * factor, layer.bias.double() * product]
    return result


@pytest.mark.parametrize("norms, scale", PLACES)
@pytest.mark.parametrize("strengths", [(0.3, None), (1.0, None), (0.1, 0.7)])
def test_rescaled_weights_are_those_of_a_loop_over_layers(norms, scale, strengths):
    model = network(*norms, scale=scale)
    rescaling = SoftWeightRescaling(*strengths).attach(model)
    initial = {i: layer.weight.norm().item() for i, layer in enumerate(model) if len(list(layer.parameters()))}
    for seed in (3, 4):
        grown(model, seed)
        expected = by_a_loop(model, initial, *strengths)
        rescaling.after_step()
        for found, each in zip(model.parameters(), expected, strict=True):
            torch.testing.assert_close(found.double(), each, rtol=1e-5, atol=1e-7)


class ConvNormActivation(nn.Sequential):
    """A block whose name says that it may hold a normalization layer; this one holds none."""


def network_with_a_block():
    torch.manual_seed(0)
    block = ConvNormActivation(nn.Conv2d(4, 4, 3, groups=4), nn.ReLU())
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), block, nn.Flatten(), nn.Linear(16, 3))


NETWORKS = {
    **{f"norms {norms} {scale}": partial(network, *norms, scale=scale) for norms, scale in PLACES},
    "a block": network_with_a_block,
}


@pytest.mark.parametrize("name", NETWORKS)
def test_outputs_are_multiplied_by_one_factor(name):
    """Theorem 1 of the paper, and its continuation to normalization layers."""
    model = NETWORKS[name]().double()
    for layer in model.modules():
        if isinstance(layer, NORMS):
            layer.eps = 1e-14
    rescaling = SoftWeightRescaling(0.3).attach(model)
    before = grown(model)(X.double())
    rescaling.after_step()
    ratios = model(X.double()) / before
    torch.testing.assert_close(ratios, ratios[0, 0].expand_as(ratios), rtol=1e-6, atol=0)
    assert 0 < ratios[0, 0] < 0.9


def test_norms_converge_to_the_initial_ones_and_stay():
    model = network(0)
    rescaling = SoftWeightRescaling(0.5).attach(model)
    initial = state_of(model)
    rescaling.after_step()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, initial[name], rtol=1e-6, atol=1e-7)
    grown(model)
    for _ in range(40):
        rescaling.after_step()
    for name, p in model.named_parameters():
        if "weight" in name:
            assert p.norm().item() == pytest.approx(float(initial[name].norm()), rel=1e-5)


def test_a_weight_of_zeros_stays():
    assert soft_rescaling(torch.tensor(0.0), 1.0, 0.5) == 1
    with pytest.raises(ValueError, match=r"`strength` must be in \[0, 1\], got 2"):
        soft_rescaling(torch.tensor(1.0), 1.0, 2)


class AfterEachStep(pl.Callback):
    """Keeps the state after each optimizer step; stands before or after the method."""

    def __init__(self):
        self.states = []

    def on_train_batch_end(self, trainer, pl_module, *args):
        self.states.append(state_of(pl_module))


ONE = Weights(preset="cnn", include=["net.3"])
CASES = {
    "clipping": (WeightClipping(0.9), {"net.0.weight", "net.0.bias", "net.3.weight", "net.3.bias"}),
    "clipping of one": (WeightClipping(0.9, ONE), {"net.3.weight", "net.3.bias"}),
    "rescaling of one": (SoftWeightRescaling(0.3, where=ONE), {"net.1.weight", "net.1.bias", "net.3.weight"}),
}


@pytest.mark.parametrize("name", CASES)
def test_in_a_fit_it_acts_after_each_step_and_only_on_what_is_selected(name):
    method, expected = CASES[name]
    before, after = AfterEachStep(), AfterEachStep()
    fitted(before, PlasticityCallback(method), after)
    assert len(after.states) == 24
    moved = set()
    for one, other in zip(before.states, after.states, strict=True):
        moved |= {key for key in one if not torch.equal(one[key], other[key])}
        if name != "rescaling of one":
            assert all(
                float(other[key].abs().max()) <= 0.9 / (6 if "net.0" in key else 8) ** 0.5 + 1e-6 for key in expected
            )
    assert expected <= moved <= expected | {key for key in initial_state() if "net.3" in key or "net.5" in key}
    if method.where is not None:
        assert not moved & {"net.0.weight", "net.5.weight"}
