"""Every method on a GPU: what it does on the CPU, the same each time, with few waits."""

import warnings
from collections import Counter

import pytest
import torch
from methods_table import MADE
from torch import nn

from lightning_fire import UPGD, Muon, methods, muon_groups

X = torch.randn(32, 3, 8, 8, generator=torch.Generator().manual_seed(1))
DRAWS = (
    "shrink_and_perturb_fresh",
    "full_reset_fresh",
    "redo",
    "redo_gradient",
    "redo_pre_activation",
    "plasticity_injection",
    "continual_backprop",
    "continual_backprop_pre_activation",
    "snr",
    "snr_pre_activation",
)
"""Methods that draw new weights, on each kind of device other ones."""
OPTIMIZERS = {
    "upgd": lambda model: UPGD(model.parameters(), noise=0.0),
    "upgd with noise": lambda model: UPGD(model.parameters(), noise=0.1),
    "muon": lambda model: Muon(muon_groups(model), lr=0.01),
}


def network() -> nn.Sequential:
    torch.manual_seed(0)
    convolutions = (
        nn.Conv2d(3, 16, 3, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, groups=2),
        nn.ReLU(),
    )
    linear = (nn.Linear(64, 300), nn.LayerNorm(300), nn.ReLU(), nn.Linear(300, 10))
    return nn.Sequential(*convolutions, nn.AdaptiveAvgPool2d(2), nn.Flatten(), *linear)


class Run:
    """A model on a device after one training step, and what a method does with it in further steps.

    No gradient is rounding error alone, such as that of a bias before a BatchNorm, which Adam would enlarge.
    """

    def __init__(self, device: str, make_optimizer=lambda model: torch.optim.Adam(model.parameters(), 1e-2, eps=1e-3)):
        self.model, self.x = network(), X.to(device)
        initial = methods.initial_values(self.model)
        self.model.to(device)
        self.optimizer = make_optimizer(self.model)
        self.loop = methods.Loop(self.optimizer, self.forward, lambda: [self.loss()], initial)
        self.step()

    def forward(self):
        return self.model(self.x)

    def loss(self):
        return self.forward().square().mean()

    def step(self, before=lambda: None, after=lambda: None):
        self.optimizer.zero_grad()
        self.loss().backward()
        before()
        self.optimizer.step()
        after()

    def state(self):
        return {name: value.detach().cpu().double() for name, value in self.model.state_dict().items()}


def applied(name: str, device: str) -> dict[str, torch.Tensor]:
    """Return the state of the model after a method and some steps."""
    run = Run(device)
    if name == "tortoise":
        tortoise = methods.Tortoise(run.model, 0.9)
        for _ in range(4):
            run.step(after=tortoise.after_step)
        tortoise.reset_()
    elif name == "rank_ascent":
        methods.RankAscent(run.model, run.forward, 0.01).step(run.forward)
    elif isinstance(MADE.get(name), methods.EventMethod):
        method = MADE[name] if "plasticity" not in name else methods.PlasticityInjection("10")
        method.prepare(run.model)
        method(run.model, run.loop)
    else:
        at_work = MADE[name].attach(run.model, run.loop)
        for _ in range(4):
            run.step(lambda: at_work.before_step(run.optimizer), at_work.after_step)
    run.step()  # after which an event is verified
    run.step()
    return run.state()


def assert_same(found, expected, tolerance):
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert found[key].isfinite().all(), key
        assert (found[key] - value).abs().max() <= tolerance * (value.abs().max() + 1e-6), key


@pytest.mark.parametrize("name", [*MADE, "tortoise", "rank_ascent"])
def test_a_method_does_what_it_does_on_the_cpu(device, name):
    found = applied(name, device)
    assert_same(applied(name, device), found, 1e-3)  # sums on a GPU are in any order
    if name not in DRAWS:
        assert_same(found, applied(name, "cpu"), 2e-2)


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_an_optimizer_does_what_it_does_on_the_cpu(device, make):
    def trained(where):
        run = Run(where, make)
        for _ in range(3):
            run.step()
        return run.state()

    found = trained(device)
    assert_same(trained(device), found, 1e-3)
    if make is not OPTIMIZERS["upgd with noise"]:
        assert_same(found, trained("cpu"), 2e-2)


def waits_of(call) -> Counter:
    """Return how often a call waits for the GPU, by place."""
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            call()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    found = [w for w in caught if "called a synchronizing CUDA operation" in str(w.message)]
    return Counter(f"{w.filename.split('lightning_fire/')[-1]}:{w.lineno}" for w in found)


@pytest.mark.parametrize("method", [methods.FIRE(), methods.FIRE(steps="exact"), methods.FIRE(scale="auto")])
def test_an_event_waits_at_most_twice(device, method):
    if device != "cuda":
        pytest.skip("waits are counted on a GPU")
    run = Run(device)
    method(run.model, run.loop)  # loads kernels
    run.step()
    run.step()
    found = waits_of(lambda: method(run.model, run.loop))
    assert found.total() <= 2, found
