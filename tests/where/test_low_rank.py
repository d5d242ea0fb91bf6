"""Low-rank factors of adapters: a small correction of a weight never becomes large."""

import pytest
import torch
from torch import nn

from lightning_fire import Weights, fire_
from lightning_fire.where.low_rank import low_rank_factors

BASE, A, B = (64, 64), (4, 64), (64, 4)
DIMENET = {"lin": BASE, "lin_kj": BASE, "lin_ji": BASE, "lin_down": (32, 64), "lin_up": (64, 32)}


@pytest.mark.parametrize(
    "factors",
    [
        {"q.lora_A.default.weight": A, "q.lora_B.default.weight": B},  # PEFT
        {"q.lora_a.weight": A, "q.lora_b.weight": B},  # torchtune
        {"lora_unet_q.lora_down.weight": A, "lora_unet_q.lora_up.weight": B},  # kohya
        {"attn.processor.to_q_lora.down.weight": A, "attn.processor.to_q_lora.up.weight": B},  # diffusers
        {"q.lora_A": A, "q.lora_B": B},  # litgpt, loralib
        {"q.hada_w1_a": A, "q.hada_w1_b": B},  # LoHa
        {"q.weight": BASE, "q.A.weight": A, "q.B.weight": B},
        {"q.base.weight": BASE, "q.down.weight": A, "q.up.weight": B},
        {"q.weight": BASE, "k.weight": BASE, "kv.weight": BASE, "q_a.weight": A, "q_b.weight": B},
        {"q.base.weight": BASE, "q.adapter_a.weight": A, "q.adapter_b.weight": B},
        {"q.A.weight": A, "q.B.weight": B},  # in a file of its own
        {"conv.weight": (64, 64, 3, 3), "conv.A.weight": (4, 64, 3, 3), "conv.B.weight": (64, 4, 1, 1)},
    ],
)
def test_factors_are_found_by_name_or_structure(factors):
    expected = {name for name, shape in factors.items() if shape[:2] in (A, B)}
    assert low_rank_factors({**factors, "head.weight": (10, 64)}) == expected


@pytest.mark.parametrize(
    "layers",
    [
        {"mlp.up_proj.weight": (256, 64), "mlp.down_proj.weight": (64, 256), "mlp.gate_proj.weight": (256, 64)},
        {"se.down.weight": A, "se.up.weight": B},  # squeeze and excitation
        {"net.fc1.weight": BASE, "net.fc2.weight": A, "net.fc3.weight": B},  # an autoencoder
        {"attn.q_a_proj.weight": A, "attn.q_b_proj.weight": B, "attn.o_proj.weight": BASE},  # DeepSeek
        {"x.base.weight": BASE, "x.a.weight": (48, 64), "x.b.weight": (64, 48)},  # not low
        {"pair.A.weight": (4, 64), "pair.B.weight": (64, 8)},
        {"explora.weight": A, "color.weight": B},
        {f"block.{name}.weight": shape for name, shape in DIMENET.items()},
        {"mix.weight": BASE, "down.weight": A, "down.bias": (4,), "up.weight": B},  # a bottleneck
    ],
)
def test_other_narrow_layers_are_none(layers):
    assert low_rank_factors(layers) == set()


def test_any_names_beside_a_frozen_weight():
    layers = {"base.weight": BASE, "reduce.weight": A, "expand.weight": B, "other.weight": (8, 64)}
    assert low_rank_factors(layers, {"base.weight"}) == {"reduce.weight", "expand.weight"}
    assert low_rank_factors(layers) == set()
    own = {"0.weight": BASE, "0.lin_in": A, "0.lin_out": B, "1.lin_in": A, "1.lin_out": B}
    assert low_rank_factors(own, {"0.weight"}) == {"0.lin_in", "0.lin_out"}
    assert low_rank_factors(own) == set()


class Adapted(nn.Module):
    """A frozen layer and a small correction of it."""

    def __init__(self, first: str, second: str):
        super().__init__()
        self.base = nn.Linear(64, 64).requires_grad_(False)
        setattr(self, first, nn.Linear(64, 4, bias=False))
        setattr(self, second, nn.Linear(4, 64, bias=False))
        with torch.no_grad():
            getattr(self, second).weight.mul_(1e-3)
        self.names = first, second

    def correction(self) -> torch.Tensor:
        return getattr(self, self.names[1]).weight @ getattr(self, self.names[0]).weight


class AdaptedWeight(nn.Module):
    """A frozen weight and a small correction of it, as parameters of one module."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 64) / 8, requires_grad=False)
        self.lin_in, self.lin_out = nn.Parameter(torch.randn(64, 4) / 8), nn.Parameter(torch.randn(4, 64) / 1000)

    def forward(self, x):
        return nn.functional.linear(x, self.weight) + x @ self.lin_in @ self.lin_out


def test_fire_leaves_the_correction_of_a_bare_weight_as_it_is():
    model = nn.Sequential(AdaptedWeight(), nn.ReLU(), nn.Linear(64, 8))
    before = model[0].lin_in @ model[0].lin_out
    assert Weights().select(model).names == ["2.weight"]
    fire_(model)
    assert torch.equal(model[0].lin_in @ model[0].lin_out, before)


@pytest.mark.parametrize("names", [("lora_down", "lora_up"), ("A", "B"), ("narrow", "wide")])
def test_fire_leaves_the_correction_as_it_is(names):
    model = nn.Sequential(Adapted(*names), nn.Linear(64, 8))
    before = model[0].correction().clone()
    selection = Weights().select(model)
    assert [view.name for view in selection] == ["1.weight"]
    assert sum(row.reason == "low-rank factor of an adapter" for row in selection.rows) == 2
    fire_(model)
    assert torch.equal(model[0].correction(), before)


def test_a_base_that_no_optimizer_trains_is_as_good_as_frozen():
    model = nn.Sequential(Adapted("narrow", "wide").requires_grad_(True), nn.Linear(64, 8))
    before = model[0].correction().clone()
    trained = [*model[0].narrow.parameters(), *model[0].wide.parameters(), *model[1].parameters()]
    with pytest.warns(UserWarning, match=r"leaves out 0\.base\.weight: no optimizer trains it"):
        fire_(model, optimizers=torch.optim.SGD(trained, lr=0.1))
    assert torch.equal(model[0].correction(), before)


def test_a_projection_with_an_adapter_keeps_its_parts():
    """litgpt's LoRA: the fused layer is inside a wrapper that holds the factors."""
    attention = nn.Module()
    attention.qkv = nn.Module()
    attention.qkv.linear = nn.Linear(64, 192)
    attention.qkv.lora_A, attention.qkv.lora_B = nn.Linear(64, 4), nn.Linear(4, 192)
    assert [view.name for view in Weights("cnn").select(attention)] == [f"qkv.linear.weight[{x}]" for x in "qkv"]
