"""A model whose weights are on several devices; no device is needed for that."""

import contextlib

import pytest
import torch
from methods_table import made
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode

from lightning_fire import METHODS, HiddenUnits, methods
from lightning_fire.methods.base import unit_reset
from lightning_fire.methods.base.change import Change

READS = (DataDependentOutputException, DynamicOutputShapeException)


class OnTwo(nn.Module):
    """Hidden units on one device, the next layer, with units of its own, on another."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(8, 16, device="cuda:0"), nn.LayerNorm(16, device="cuda:0"), nn.ReLU())
        self.second = nn.Sequential(nn.Linear(16, 12, device="cuda:1"), nn.ReLU())
        self.head = nn.Linear(12, 4, device="cuda:1")

    def forward(self, x):
        return self.head(self.second(self.first(x).to("cuda:1")))


def losses(model, x):
    return [model(x).square().mean()]


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
@pytest.mark.parametrize("kind", METHODS, ids=lambda kind: kind.name)
def test_every_method_acts_on_several_devices(kind):
    method = made(kind, "head")
    with FakeTensorMode(), contextlib.suppress(*READS):  # it gets as far as reading a value
        model, x = OnTwo(), torch.randn(4, 8, device="cuda:0")
        optimizer, initial = torch.optim.Adam(model.parameters(), foreach=False), methods.initial_values(model)
        loop = methods.Loop(optimizer, lambda: model(x), lambda: losses(model, x), initial)
        if isinstance(method, methods.EventMethod):
            method(model, loop)
        else:
            at_work = method.attach(model, loop)
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            at_work.before_step(optimizer)
            at_work.after_step()


def test_units_whose_layers_are_on_several_devices_are_reset(monkeypatch):
    monkeypatch.setattr(unit_reset, "seeded", lambda seed, devices: contextlib.nullcontext())
    with FakeTensorMode():
        model, x = OnTwo(), torch.randn(4, 8, device="cuda:0")
        optimizer = torch.optim.SGD(model.parameters(), momentum=0.9, foreach=False)
        for parameter in model.parameters():
            optimizer.state[parameter] = {"momentum_buffer": torch.zeros_like(parameter)}
        layers = HiddenUnits().select(model, lambda: model(x))
        assert [layer.name for layer in layers] == ["first.0", "second.0"]
        for device in ("cuda:0", "cuda:1"):
            chosen = [(layer, torch.arange(3, device=device)) for layer in layers]
            writes = unit_reset.unit_resets(chosen, 0, optimizer)
            assert {tensor.device.index for tensor, *_ in writes} == {0, 1}
            Change(parts=writes).make()
