"""Low-rank factors of adapters: a small correction of a weight never becomes large."""

import pytest
import torch
from torch import nn

from lightning_fire import Weights, fire_


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
        self.proj_in, self.proj_out = nn.Parameter(torch.randn(64, 4) / 8), nn.Parameter(torch.randn(4, 64) / 1000)

    def forward(self, x):
        return nn.functional.linear(x, self.weight) + x @ self.proj_in @ self.proj_out


def test_fire_leaves_the_correction_of_a_bare_weight_as_it_is():
    model = nn.Sequential(AdaptedWeight(), nn.ReLU(), nn.Linear(64, 8))
    before = model[0].proj_in @ model[0].proj_out
    selection = Weights(layers={AdaptedWeight: "in_out"}).select(model)
    assert selection.names == ["2.weight"]
    assert sum(row.reason == "low-rank factor of an adapter" for row in selection.rows) == 2
    with pytest.warns(UserWarning, match="proj_in"):
        fire_(model)
    assert torch.equal(model[0].proj_in @ model[0].proj_out, before)


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


def test_a_projection_with_an_adapter_inside_is_left_out_unless_its_split_is_given():
    """litgpt's LoRA: the fused layer is inside a wrapper that holds the factors."""
    attention = nn.Module()
    attention.qkv = nn.Module()
    attention.qkv.linear = nn.Linear(64, 192)
    attention.qkv.lora_A, attention.qkv.lora_B = nn.Linear(64, 4), nn.Linear(4, 192)
    split = {"qkv.linear": {"q": 64, "k": 64, "v": 64}}
    assert Weights("cnn", split=split).select(attention).names == [f"qkv.linear.weight[{x}]" for x in "qkv"]
    with pytest.raises(ValueError, match="fused, rows in an order that is not known"):
        Weights("cnn").select(attention)


def test_neighbours_that_are_no_factors_are_taken():
    """A frozen encoder before an autoencoder in a Sequential, and a wide pair."""
    frozen = nn.Linear(64, 64).requires_grad_(False)
    assert len(Weights().select(nn.Sequential(frozen, nn.Linear(64, 4), nn.Linear(4, 64)))) == 2
    wide = nn.ModuleDict({"base": frozen, "up": nn.Linear(64, 48), "down": nn.Linear(48, 64)})
    assert len(Weights().select(wide)) == 2


def test_what_a_layer_of_peft_holds_is_left_out():
    peft = pytest.importorskip("peft")
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["0"], modules_to_save=["2"]))
    for parameter in adapted.parameters():
        parameter.requires_grad_(True)
    taken = Weights("cnn", include=["^(?!.*original_module)"]).select(adapted).names
    assert [name.removeprefix("base_model.model.") for name in taken] == [
        "0.base_layer.weight",
        "2.modules_to_save.default.weight",
    ]

    class BaseTunerLayer(nn.Module):
        """As GraLoRA's and others': factors of any names."""

        def __init__(self):
            super().__init__()
            self.base_layer, self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4), nn.Linear(4, 8)

    assert Weights("cnn").select(nn.ModuleDict({"a": BaseTunerLayer()})).names == ["a.base_layer.weight"]
