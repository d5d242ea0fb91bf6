"""Every method on a pretended GPU, and on two: the values of the CPU, without a mix of devices, and with few waits."""

import contextlib
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import pytest
import torch
from methods_table import MADE
from pretended import Pretended
from torch import nn

from lightning_fire import (
    FIRE,
    ContinualBackprop,
    FullReset,
    Parseval,
    ShrinkAndPerturb,
    WeightProjection,
    Weights,
)
from lightning_fire.methods import EventMethod, Loop, RankAscent, Tortoise, initial_values
from lightning_fire.optim import UPGD, Muon, muon_groups

STEPS = 3
ONE, TWO = ("cuda:0", "cuda:0"), ("cuda:0", "cuda:1")


class Net(nn.Module):
    """Five layers with hidden units of their own; those of the second half may be on another device."""

    def __init__(self, first, second):
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(2, 6, 3, bias=False),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(24, 12),
            nn.LayerNorm(12),
            nn.ReLU(),
        ).to(first)
        self.second = nn.Sequential(nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 12), nn.LayerNorm(12), nn.ReLU()).to(
            second
        )
        self.head = nn.Linear(12, 3).to(second)

    def forward(self, x):
        return self.head(self.second(self.first(x).to(self.head.weight.device)))


class Done(NamedTuple):
    """What a training with a method has led to, and the waits of each of its parts."""

    weights: dict[str, torch.Tensor]
    values: dict[str, float]
    waits: dict[str, int]
    decompositions: int


OPTIONS = {
    "fire_exact": FIRE(steps="exact", optimizer_state="all"),
    "fire_auto": FIRE(scale="auto", coefficients="quintic", optimizer_state="keep"),
    "fire_procrustes": FIRE(scale="procrustes", coefficients="muon", steps=5),
    "full_reset_isometry": FullReset(target="isometry"),
    "shrink_and_perturb_independent": ShrinkAndPerturb(0.6, perturb=0.1),
    "parseval_norms": Parseval(0.1, scale=2.0, norms=True),
    "continual_backprop_alone": ContinualBackprop(0.2, maturity=2, compensate=False),
    "hidden_weights": WeightProjection(Weights(preset="cnn", include=["^second"])),
}
"""Values of the other options of methods."""
VALUES = MADE | OPTIONS
OPTIMIZERS = {
    "upgd": lambda model: UPGD(model.parameters(), noise=0.1),
    "muon": lambda model: Muon(muon_groups(model), lr=0.01),
}
OWN = {
    "feature_rank": lambda model, forward: RankAscent(model, forward, 0.01),
    "hare_and_tortoise": lambda model, forward: Tortoise(model, 0.7),
}
DRAW_BY_DEVICE = {"shrink_and_perturb_fresh", "full_reset_fresh", "upgd"}
"""Methods that draw for all layers from one generator, of which each device has its own."""
EVERY = [*VALUES, *OWN, *OPTIMIZERS]


@cache
def trained(name, devices=("cpu", "cpu")):
    """Train some steps with a method, on the CPU or on devices that are pretended."""
    with Pretended() if devices != ("cpu", "cpu") else contextlib.nullcontext() as pretended:
        torch.manual_seed(0)
        x, model = torch.randn(16, 2, 4, 4).to(devices[0]), Net(*devices)
        waits, decompositions, values = {}, [0], {}

        @contextlib.contextmanager
        def counted(part):
            if pretended is not None:
                pretended.forget()
            yield
            if pretended is not None:
                waits[part] = max(waits.get(part, 0), pretended.count)
                decompositions[0] += sum(pretended.decompositions.values())

        def forward():
            return model(x)

        def losses():
            return [forward().square().mean() for _ in range(2)]

        def step(before=None, after=None):
            optimizer.zero_grad()
            forward().square().mean().backward()
            with counted("step"):
                for call in (before, optimizer.step, after):
                    if call is not None:
                        call()

        initial = initial_values(model)
        method = VALUES.get(name)
        if name == "plasticity_injection":
            method = replace(method, head="head")
            method.prepare(model)
        optimizer = OPTIMIZERS.get(name, lambda model: torch.optim.Adam(model.parameters(), lr=0.01))(model)
        loop = Loop(optimizer, forward, losses, initial)
        step()
        waits.clear()
        if isinstance(method, EventMethod):
            with counted("event"):
                values = dict(method(model, loop).values)
            values.pop("seconds", None)
            for _ in range(STEPS):
                step()
        elif method is not None:
            with counted("attach"):
                attached = method.attach(model, loop)
            for _ in range(STEPS):
                step(lambda: attached.before_step(optimizer), attached.after_step)
            with counted("metrics"):
                values = attached.metrics()
            attached.load_state_dict(attached.state_dict())
            step(lambda: attached.before_step(optimizer), attached.after_step)
        elif name == "feature_rank":
            ascent = OWN[name](model, forward)
            for _ in range(2):
                with counted("event"):
                    values["rank"] = ascent.step(forward)
        elif name == "hare_and_tortoise":
            both = OWN[name](model, forward)
            for _ in range(STEPS):
                step(after=both.after_step)
            with counted("event"):
                values = dict(both.reset_().values)
            step()
        else:
            for _ in range(STEPS):
                step()
        weights = {key: value.detach().cpu().clone() for key, value in model.state_dict().items()}
    return Done(weights, values, waits, decompositions[0])


@pytest.mark.parametrize("devices", [ONE, TWO], ids=["one device", "two devices"])
@pytest.mark.parametrize("name", EVERY)
def test_every_method_does_on_a_device_what_it_does_on_the_cpu(name, devices):
    found, expected = trained(name, devices), trained(name)
    assert found.weights.keys() == expected.weights.keys()
    if devices == TWO and name in DRAW_BY_DEVICE:
        return
    for key, value in expected.weights.items():
        torch.testing.assert_close(found.weights[key], value, rtol=1e-4, atol=1e-5, msg=f"{key} differs")
    assert found.values == pytest.approx(expected.values, rel=1e-4)


ONCE, TWICE, AND_ONCE_A_STEP = {"event": 1}, {"event": 2}, {"step": 1}  # after an event: whether the new weights last
UNITS = {"step": 2}  # which units, and whether the first new weights last
ALLOWED = {
    "fire": TWICE | AND_ONCE_A_STEP,  # whether all is finite, and the report
    "fire_exact": TWICE | AND_ONCE_A_STEP,
    "fire_auto": TWICE | AND_ONCE_A_STEP,
    "fire_procrustes": TWICE | AND_ONCE_A_STEP,
    "full_reset_isometry": {"event": 2} | AND_ONCE_A_STEP,
    "shrink_and_perturb_independent": TWICE | AND_ONCE_A_STEP,
    "parseval_norms": {"metrics": 1},
    "continual_backprop_alone": UNITS,
    "hidden_weights": {"attach": 1},
    "shrink_and_perturb": TWICE | AND_ONCE_A_STEP,
    "shrink_and_perturb_fresh": TWICE | AND_ONCE_A_STEP,
    "full_reset": ONCE | AND_ONCE_A_STEP,
    "full_reset_fresh": ONCE | AND_ONCE_A_STEP,
    "dash": {"event": 4} | AND_ONCE_A_STEP,  # also before and after its passes over the new data
    "redo": ONCE | AND_ONCE_A_STEP,
    "redo_gradient": ONCE | AND_ONCE_A_STEP,
    "redo_pre_activation": ONCE | AND_ONCE_A_STEP,
    "plasticity_injection": ONCE | AND_ONCE_A_STEP,
    "continual_backprop": UNITS,
    "continual_backprop_pre_activation": UNITS,
    "snr": UNITS | {"metrics": 1},
    "snr_pre_activation": UNITS | {"metrics": 1},
    "selective_weight_reinit": {"metrics": 1},
    "selective_weight_reinit_magnitude": {"metrics": 1},
    "l2_init": {"metrics": 1},
    "parseval": {"metrics": 1},
    "spectral": {"metrics": 1},
    "isometry_decay": {"metrics": 1},
    "weight_projection": {"attach": 1},
    "soft_weight_rescaling": {"attach": 1},
    "feature_rank": ONCE,
    "hare_and_tortoise": TWICE | AND_ONCE_A_STEP,
}
"""Waits for a device that each part of a training with a method may take, whatever the number of layers; others: 0."""


@pytest.mark.parametrize("name", EVERY)
def test_methods_hardly_wait_for_a_device(name):
    done = trained(name, ONE)
    allowed = ALLOWED.get(name, {})
    assert {part: number for part, number in done.waits.items() if number > allowed.get(part, 0)} == {}
    assert done.decompositions == (2 * 2 * 4 if name == "feature_rank" else 0)  # two steps, two of each layer
