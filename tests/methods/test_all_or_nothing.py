"""An error at any operation of a change leaves no difference, and Ctrl-C leaves all of the change or none of it."""

import copy

import pytest
import torch
from methods_table import made
from raising import RaisesAt, spread
from torch import nn
from torch.nn.functional import cross_entropy

from lightning_fire import METHODS, initial_values
from lightning_fire.methods import (
    DASH,
    ContinualBackprop,
    EventMethod,
    FullReset,
    Loop,
    PlasticityInjection,
    ReDo,
    SelectiveWeightReinit,
    SelfNormalizedReset,
    ShrinkAndPerturb,
)

CASES = {kind.name: made(kind, "head") for kind in METHODS} | {
    "full_reset_fresh": FullReset(fresh_seed=0),
    "full_reset_of_isometry": FullReset(target="isometry", optimizer_state="all"),
    "shrink_and_perturb_fresh": ShrinkAndPerturb(fresh_seed=0),
    "redo_by_gradient": ReDo(threshold=0.9, score="gradient"),
    "redo_of_all": ReDo(threshold=100.0),
    "dash_of_all_state": DASH(num_batches=2, optimizer_state="all"),
    "continual_backprop": ContinualBackprop(replacement_rate=1.0, maturity=0),
    "snr": SelfNormalizedReset(rejection=0.5, max_silence=2),
    "selective_weight_reinit": SelectiveWeightReinit(factor=0.3, every=1, optimizer_state="touched"),
}


class Net(nn.Module):
    """Hidden units, normalization with running statistics, a buffer made by `expand`, and a head."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU())
        self.head = nn.Linear(5, 3)
        self.register_buffer("positions", torch.arange(3).expand(2, 3))

    def forward(self, x):
        return self.head(self.body(x))


class Trained:
    """A model after some steps of fused SGD with momentum or of Adam, with a method at work on it."""

    def __init__(self, method, kind=torch.optim.Adam):
        torch.manual_seed(0)
        self.model, self.method = Net(), method
        self.x, self.y = torch.randn(8, 4), torch.arange(8) % 3
        options = {"momentum": 0.9, "fused": True} if kind is torch.optim.SGD else {}
        self.optimizer = kind(self.model.parameters(), lr=1e-2, **options)
        initial = initial_values(self.model)
        self.loop = Loop(self.optimizer, lambda: self.model(self.x), lambda: [self.loss(), self.loss()], initial)
        if isinstance(method, PlasticityInjection):
            method.prepare(self.model)
        self.at_work = None if isinstance(method, EventMethod) else method.attach(self.model, self.loop)
        for _ in range(3):
            self.train()
        if method is CASES["snr"]:
            nn.init.constant_(self.model.body[3].bias, -100.0)  # never fires
            self.at_work.after_step()
            self.train()
        self.optimizer.zero_grad()
        self.loss().backward()

    def loss(self):
        return cross_entropy(self.model(self.x), self.y)

    def train(self):
        self.optimizer.zero_grad()
        self.loss().backward()
        self.optimizer.step()

    def act(self):
        if self.at_work is None:
            self.method(self.model, self.loop)
        else:
            self.at_work.before_step(self.optimizer)
            self.at_work.after_step()

    def state(self):
        """Everything that must stay: weights, buffers, structure, optimizer state, random state, counts."""
        at_work = {} if self.at_work is None else {"num_reset": getattr(self.at_work, "num_reset", 0)}
        parts = [(name, type(part).__name__, part.training) for name, part in self.model.named_modules()]
        flags = [(name, id(p), p.requires_grad) for name, p in self.model.named_parameters()]
        state = {**self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "random": torch.get_rng_state()}
        return copy.deepcopy({**state, "parts": parts, "flags": flags, "event": self.loop.event, **at_work})


def differences(one, other, name=""):
    """Names of what differs in two nested states."""
    if isinstance(one, torch.Tensor):
        return [] if isinstance(other, torch.Tensor) and torch.equal(one, other) else [name]
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return [each for key in one for each in differences(one[key], other[key], f"{name}.{key}")]
    return [] if one == other else [name]


def changed(trained):
    """Whether a method has changed a weight, optimizer state, or a gradient."""
    before = Trained(trained.method, type(trained.optimizer))
    gradients = [{name: p.grad for name, p in each.model.named_parameters()} for each in (before, trained)]
    return differences(*gradients) or differences(of_change(before.state()), of_change(trained.state()))


def of_change(state):
    """What is compared of two trainings: parameters have other identities."""
    return {name: value for name, value in state.items() if name != "flags"}


def counted(trained):
    """Let a method act, and count its operations, without those that only the first act of a process needs."""
    Trained(trained.method, type(trained.optimizer)).act()
    with RaisesAt() as counter:
        trained.act()
    return counter


def errors_leave_nothing(method, kind, most=None):
    """Raise an error instead of each operation, or of some; return how often, and what differs."""
    trained = Trained(method, kind)
    counter = counted(trained)
    assert changed(trained), "the method has done nothing"
    left = {}
    trained = Trained(method, kind)
    before = trained.state()
    numbers = spread(counter.count, most) if most else range(1, counter.count + 1)
    for number in numbers:
        raised = False
        try:
            with RaisesAt(number):
                trained.act()
        except Exception:
            raised = True
        if not raised:  # statistics that have moved need fewer operations; a trial of a new optimizer may fail
            trained = Trained(method, kind)
            before = trained.state()
        elif found := differences(before, trained.state()):
            left[number] = found
            trained = Trained(method, kind)
    return len(numbers), left


def interrupts_complete(method, most=None):
    """Raise Ctrl-C instead of each operation, or of some; return how often, and where half of a change is left."""
    trained = Trained(method)
    counter = counted(trained)
    after, left = of_change(trained.state()), []
    trained = Trained(method)
    before = of_change(trained.state())
    numbers = spread(counter.count, most) if most else range(1, counter.count + 1)
    for number in numbers:
        with pytest.raises(KeyboardInterrupt), RaisesAt(number, KeyboardInterrupt):
            trained.act()
        state = of_change(trained.state())
        if differences(before, state):
            if differences(after, state):
                left.append(number)
            trained = Trained(method)
        elif trained.at_work is not None:  # its statistics have moved
            trained = Trained(method)
    return len(numbers), left


@pytest.mark.parametrize("name", CASES)
def test_an_error_at_some_operations_leaves_no_difference(name):
    done, left = errors_leave_nothing(CASES[name], torch.optim.Adam, most=12)
    assert done > 2
    assert left == {}


@pytest.mark.parametrize("name", CASES)
def test_an_interrupt_at_some_operations_leaves_all_or_nothing(name):
    assert interrupts_complete(CASES[name], most=10)[1] == []


@pytest.mark.crash
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD])
@pytest.mark.parametrize("name", CASES)
def test_an_error_at_any_operation_leaves_no_difference(name, kind):
    done, left = errors_leave_nothing(CASES[name], kind)
    print(f"{name}: {len(left)} of {done}")
    assert left == {}


@pytest.mark.crash
@pytest.mark.parametrize("name", CASES)
def test_an_interrupt_at_any_operation_leaves_all_or_nothing(name):
    done, left = interrupts_complete(CASES[name])
    print(f"{name}: {len(left)} of {done}")
    assert left == []
