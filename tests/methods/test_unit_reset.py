"""Resets of units: every new value is computed before the first is written."""

import copy
import pickle
import pickletools

import pytest
import torch
from torch import nn

from lightning_fire.methods import ContinualBackprop, Loop, RankAscent, ReDo, SelfNormalizedReset


class Fragile(nn.Linear):
    """Cannot be drawn again."""

    def reset_parameters(self):
        if hasattr(self, "weight") and not getattr(self, "whole", True):
            raise OSError("no values")
        super().reset_parameters()


def network() -> nn.Sequential:
    first = nn.Linear(2, 4), nn.LayerNorm(4), nn.ReLU()
    return nn.Sequential(*first, nn.Linear(4, 4), nn.ReLU(), Fragile(4, 4), nn.ReLU(), nn.Linear(4, 1))


def attached(method):
    """The step of a method, which returns the number of units reset so far."""

    def begin(model, training):
        at_work = method.attach(model, training)
        return lambda: at_work.after_step() or at_work.metrics()["units"]

    return begin


STEPS = {
    "redo": lambda model, training: lambda: ReDo(threshold=100.0)(model, training)["units"],
    "continual_backprop": attached(ContinualBackprop(replacement_rate=1.0, maturity=0)),
    "snr": attached(SelfNormalizedReset(max_silence=2)),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_layer_that_cannot_be_drawn_leaves_the_layers_before_it_as_they_are(name):
    model, x = network(), torch.ones(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    step = STEPS[name](model, Loop(optimizer, lambda: model(x)))
    for layer in (1, 3, 5) if name == "snr" else ():
        nn.init.constant_(model[layer].bias, -100.0)  # none fires
    for first in (True, False):
        model(x).sum().backward()
        optimizer.step()
        if name == "snr" and first:
            assert step() == 0  # silent for 3 samples, not more
    model[5].whole = False
    before, moments = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict()["state"])
    with pytest.raises(OSError, match="no values"):
        step()
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    after = optimizer.state_dict()["state"]
    assert all(torch.equal(value, moments[index][key]) for index in after for key, value in after[index].items())
    model[5].whole = True
    assert step() == 12
    assert not model[3].weight.any()  # the outgoing weights of new units


FIRST = {"continual_backprop": ContinualBackprop(), "snr": SelfNormalizedReset()}
SECOND = {
    "redo": lambda model, loop: ReDo(num_batches=3)(model, loop),
    "redo by gradient": lambda model, loop: ReDo(score="gradient")(model, loop),
    "continual_backprop": lambda model, loop: ContinualBackprop().attach(model, loop).close(),
    "snr": lambda model, loop: SelfNormalizedReset().attach(model, loop).close(),
    "rank ascent": lambda model, loop: RankAscent(model, loop.forward, lr=0.0).step(loop.forward),
}


@pytest.mark.parametrize("second", SECOND)
@pytest.mark.parametrize("first", FIRST)
def test_another_method_on_units_finds_them_and_its_passes_do_not_count(first, second):
    model, x = network(), torch.ones(3, 2)
    loop = Loop(forward=lambda: model(x), losses=lambda: [model(x).sum()])
    at_work = FIRST[first].attach(model, loop)
    model(x)
    before = copy.deepcopy(at_work.statistics)
    SECOND[second](model, loop)
    for one, other in zip(before, at_work.statistics, strict=True):
        for name, value in vars(one).items():
            torch.testing.assert_close(getattr(other, name), value, rtol=0, atol=0)


@pytest.mark.parametrize("default", [torch.float32, torch.float64])
@pytest.mark.parametrize("score", ["activation", "pre_activation"])
def test_units_of_float64_weights_are_replaced(score, default):
    model, x = network().double(), torch.ones(3, 2, dtype=torch.float64)
    former = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        at_work = ContinualBackprop(1.0, maturity=0, score=score).attach(model, Loop(forward=lambda: model(x)))
        model(x)
        at_work.after_step()
    finally:
        torch.set_default_dtype(former)
    assert at_work.metrics() == {"units": 12.0}


class Counting(nn.Linear):
    """Its `reset_parameters` also resets a buffer."""

    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.register_buffer("seen", torch.tensor(5.0))

    def reset_parameters(self):
        super().reset_parameters()
        if hasattr(self, "seen"):
            self.seen.zero_()


def test_a_draw_leaves_the_buffers_of_the_layer_alone():
    model, x = nn.Sequential(Counting(2, 4), nn.ReLU(), nn.Linear(4, 1)), torch.ones(3, 2)
    assert ReDo(threshold=100.0)(model, Loop(forward=lambda: model(x)))["units"] == 4
    assert model[0].seen == 5


WATCHING = {
    "continual_backprop": ContinualBackprop(0.5, maturity=2),
    "continual_backprop by pre-activation": ContinualBackprop(0.5, maturity=2, score="pre_activation"),
    "snr": SelfNormalizedReset(max_silence=2),
}


class Agent:
    """A network, its optimizer, and a method attached to it."""

    def __init__(self, method, x):
        torch.manual_seed(0)
        self.x, self.model = x, network()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1)
        self.at_work = method.attach(self.model, Loop(self.optimizer, lambda: self.model(x)))

    def train(self, steps=4):
        for _ in range(steps):
            self.model(self.x).square().sum().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.at_work.after_step()
        return torch.cat([parameter.detach().flatten() for parameter in self.model.parameters()])


@pytest.mark.parametrize("name", WATCHING)
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_passes_of_a_copy_do_not_count(copied, name):
    agent, alone = (Agent(WATCHING[name], torch.ones(3, 2)) for _ in range(2))
    other = copied(agent.model)
    for _ in range(4):
        other(torch.randn(5, 2))
        assert torch.equal(agent.train(1), alone.train(1))
    assert agent.at_work.metrics()["units"] > 0


@pytest.mark.parametrize("name", WATCHING)
def test_a_file_of_a_model_does_not_need_this_package(name):
    agent = Agent(WATCHING[name], torch.ones(3, 2))
    names = [value for _, value, _ in pickletools.genops(pickle.dumps(agent.model)) if isinstance(value, str)]
    assert "torch.nn.modules.linear" in names
    assert not [value for value in names if "lightning_fire" in value]


@pytest.mark.parametrize("name", WATCHING)
def test_a_copy_of_an_agent_trains_as_the_agent_and_apart_from_it(name):
    agent, alone = (Agent(WATCHING[name], torch.ones(3, 2)) for _ in range(2))
    agent.train()
    alone.train()
    second = copy.deepcopy(agent)
    expected = alone.train()
    assert torch.equal(second.train(), expected)
    assert torch.equal(agent.train(), expected)
    agent.at_work.close()
    closed = copy.deepcopy(agent.at_work)
    before = copy.deepcopy(closed.statistics)
    closed.model(agent.x)
    for one, other in zip(before, closed.statistics, strict=True):
        torch.testing.assert_close(vars(other), vars(one), rtol=0, atol=0)
