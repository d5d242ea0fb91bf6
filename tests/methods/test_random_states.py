"""Draws of new values leave the random states of torch as they are."""

import contextlib

import pytest
import torch
from torch import nn

from lightning_fire import fresh_values, methods
from lightning_fire.methods.base.seeded import seeded


class OnOtherDevices:
    """Notes what is asked of the random generators of a kind of device."""

    def __init__(self):
        self.asked = []

    def get_rng_state(self, *index):
        self.asked.append(("get", *index))
        return "state"

    def set_rng_state(self, state, *index):
        self.asked.append(("set", state, *index))

    def manual_seed(self, seed):
        self.asked.append(("seed", seed))

    @contextlib.contextmanager
    def device(self, index):
        self.asked.append(("device", index))
        yield


@pytest.mark.parametrize(
    ("device", "asked"),
    [
        ("cuda:1", [("get", 1), ("device", 1), ("seed", 7), ("set", "state", 1)]),
        ("mps", [("get",), ("seed", 7), ("set", "state")]),
        ("cpu", []),
        ("meta", []),
    ],
)
def test_the_generators_of_the_cpu_and_of_the_devices_of_a_model_are_seeded_and_restored(device, asked, monkeypatch):
    kind, before = OnOtherDevices(), torch.get_rng_state()
    monkeypatch.setattr(torch, "get_device_module", lambda device: kind)
    with pytest.raises(OSError, match="drawn"), seeded(7, {torch.device(device)}):
        assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(7)))
        raise OSError("drawn")
    assert kind.asked == asked
    assert torch.equal(torch.get_rng_state(), before)


def test_draws_seed_no_device_that_the_model_is_not_on(monkeypatch):
    seeded_devices = []
    for module, name in ((torch.cuda, "manual_seed_all"), (torch.mps, "manual_seed"), (torch.xpu, "manual_seed_all")):
        monkeypatch.setattr(module, name, seeded_devices.append)
    model, x = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1)), torch.ones(2, 2)
    before = torch.get_rng_state()
    fresh_values(model, seed=3)
    methods.ReDo(threshold=9.0)(model, methods.Loop(forward=lambda: model(x)))
    methods.PlasticityInjection("2", seed=3)(model)
    assert seeded_devices == []
    assert torch.equal(torch.get_rng_state(), before)
