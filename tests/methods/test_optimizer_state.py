"""Optimizer state at an event: what is dropped, where it is kept, and the next step."""

import copy
import warnings

import pytest
import torch
from small_training import PlainModule, assert_same_weights, fitted
from torch import distributed, nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim import LBFGS, SGD, Adam, Optimizer

from lightning_fire import FIRE, HiddenUnits, OptimizerReset, PlasticityCallback
from lightning_fire.methods.base.change import Change
from lightning_fire.methods.base.optimizer_state import follow_policy
from lightning_fire.methods.base.unit_reset import unit_resets


def stepped(build, steps: int = 3) -> tuple[nn.Sequential, Optimizer]:
    """Return two layers without biases and their optimizer, after some steps."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4, bias=False), nn.ReLU(), nn.Linear(4, 2, bias=False))
    optimizer = build(net.parameters())
    for _ in range(steps):
        step(net, optimizer)
    return net, optimizer


def step(net: nn.Module, optimizer: Optimizer) -> None:
    def loss():
        optimizer.zero_grad()
        value = net(torch.arange(12.0).view(4, 3)).square().mean()
        value.backward()
        return value

    optimizer.step(loss)


# --- fused SGD, which takes momenta of all parameters or of none ------------------------------------------------------


def test_fused_sgd_with_dampening_begins_with_a_dampened_step():
    net, optimizer = stepped(lambda parameters: SGD(parameters, 0.1, momentum=0.9, dampening=0.25, fused=True))
    with pytest.warns(UserWarning, match="the next steps of SGD differ from those of a new optimizer"):
        follow_policy("touched", [optimizer], [net[2].weight])
    before = net[2].weight.detach().clone()
    step(net, optimizer)
    torch.testing.assert_close(net[2].weight, before - 0.1 * 0.75 * net[2].weight.grad)


@pytest.mark.parametrize(("policy", "touched"), [("touched", 2), ("all", 0), ("all", 1)])
def test_fused_sgd_with_dropped_state_restarts(policy, touched):
    net, optimizer = stepped(lambda parameters: SGD(parameters, 0.1, momentum=0.9, dampening=0.25, fused=True))
    follow_policy(policy, [optimizer], list(net.parameters())[:touched])
    assert not optimizer.state
    before = net[2].weight.detach().clone()
    step(net, optimizer)
    torch.testing.assert_close(net[2].weight, before - 0.1 * net[2].weight.grad)


# --- state kept elsewhere -------------------------------------------------------------------------------------------


class Lookahead(Optimizer):
    """Steps an inner optimizer, and returns half-way to slow weights in every second step."""

    def __init__(self, inner: Optimizer):
        self.wrapped, self.count = inner, 0
        super().__init__(inner.param_groups, {})
        self.param_groups = inner.param_groups

    @torch.no_grad()
    def step(self, closure=None):
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        for parameter in parameters:
            self.state[parameter].setdefault("slow", parameter.detach().clone())
        self.wrapped.step(closure)
        self.count += 1
        for parameter in parameters if self.count % 2 == 0 else ():
            parameter.copy_(self.state[parameter]["slow"].lerp_(parameter, 0.5))


class Several(Optimizer):
    """Steps one optimizer for each parameter."""

    def __init__(self, parameters):
        parameters = list(parameters)
        self.parts = [Lookahead(Adam([parameter], lr=0.1)) for parameter in parameters]
        super().__init__(parameters, {})

    def step(self, closure):
        with torch.enable_grad():
            closure()
        for part in self.parts:
            part.step()


@pytest.fixture
def one_process(tmp_path):
    """A group of one process."""
    distributed.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


WRAPPERS = {
    "wrapper": lambda parameters: Lookahead(Adam(parameters, lr=0.1)),
    "wrapper of wrappers": Several,
    "shards": lambda parameters: ZeroRedundancyOptimizer(parameters, Adam, lr=0.1),
}


def states_of(optimizer: Optimizer) -> list[dict]:
    """Return the state of each optimizer of one of the wrappers."""
    parts = getattr(optimizer, "parts", [optimizer])
    inner = [getattr(part, "wrapped", getattr(part, "optim", None)) for part in parts]
    return [part.state for part in [*parts, *inner]]


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("build", WRAPPERS.values(), ids=WRAPPERS)
def test_the_state_of_an_inner_optimizer_is_dropped(build):
    net, optimizer = stepped(build)
    touched, other = net[2].weight, net[0].weight
    kept = copy.deepcopy([dict(state[other]) for state in states_of(optimizer) if other in state])
    assert len(kept) in (1, 2)
    assert any(touched in state for state in states_of(optimizer))
    follow_policy("touched", [optimizer], [touched])
    assert not any(touched in state for state in states_of(optimizer))
    for former, state in zip(kept, [state[other] for state in states_of(optimizer) if other in state], strict=True):
        assert former.keys() == state.keys()
        assert all(torch.equal(former[key], state[key]) for key in state)
    step(net, optimizer)
    follow_policy("all", [optimizer], [])
    assert not any(states_of(optimizer))


class Wrapped(PlainModule):
    """Trained by an optimizer that wraps Adam."""

    def configure_optimizers(self):
        return Lookahead(super().configure_optimizers())


@pytest.mark.parametrize("method", [FIRE(optimizer_state="all"), OptimizerReset()])
def test_an_event_of_a_training_with_a_wrapper_begins_a_new_optimizer(method):
    class Begins(PlasticityCallback):
        def act(self, trainer, pl_module):
            values = super().act(trainer, pl_module)
            states.extend([dict(trainer.optimizers[0].state), dict(trainer.optimizers[0].wrapped.state)])
            return values

    states = []
    fitted(Begins(method), module=Wrapped())
    assert states == [{}] * 4


@pytest.mark.parametrize("index", [0, 2])
def test_lbfgs_drops_the_curvature_of_all_weights_if_one_of_them_is_replaced(index):
    net, optimizer = stepped(lambda parameters: LBFGS(parameters, lr=0.1))
    stranger = nn.Parameter(torch.zeros(2))
    follow_policy("touched", [optimizer], [stranger])
    assert len(optimizer.state[net[0].weight]["old_dirs"]) > 0
    follow_policy("touched", [optimizer], [net[index].weight])
    assert not optimizer.state
    once, new = copy.deepcopy(net), LBFGS(net.parameters(), lr=0.1)
    step(net, new)
    step(once, LBFGS(once.parameters(), lr=0.1))
    assert_same_weights(net, once)


# --- state that cannot be reached -----------------------------------------------------------------------------------


class Hidden(Adam):
    """Keeps its state elsewhere, too."""

    def __init__(self, parameters, where: str):
        super().__init__(parameters, lr=0.1)
        self.where, (first, second, *_) = where, self.param_groups[0]["params"]
        if where == "momenta":
            self.momenta = [torch.zeros_like(first), torch.zeros_like(second)]
        elif where == "by_weight":
            self.by_weight = {parameter: {"average": torch.zeros_like(parameter)} for parameter in (first, second)}
        elif where == "flat":
            self.flat = torch.zeros(first.numel() + second.numel())
        elif where == "state":
            self.state["all of them"] = {"direction": torch.zeros(first.numel() + second.numel())}
        elif where == "inner":  # of copies in another precision
            self.inner = Adam([nn.Parameter(first.detach().double()), nn.Parameter(second.detach().double())])
        else:
            self.nothing = {"table": torch.zeros(256), "step": torch.tensor(0.0), "alias": self.state}


@pytest.mark.parametrize("where", ["momenta", "by_weight", "flat", "state", "inner"])
def test_warns_of_state_that_cannot_be_reached(where):
    net, optimizer = stepped(lambda parameters: Hidden(parameters, where), steps=0)
    name = "Adam.param_groups" if where == "inner" else f"Hidden.{where}"
    match = f"Hidden keeps tensors as large as its parameters in {name}, outside of their state: they are not dropped"
    with pytest.warns(UserWarning, match=match):
        follow_policy("touched", [optimizer], [net[2].weight])
    net, optimizer = stepped(lambda parameters: Hidden(parameters, where), steps=0)  # another: each is warned of once
    with pytest.warns(UserWarning, match=match) if where != "state" else warnings.catch_warnings():
        follow_policy("all", [optimizer], [])
    follow_policy("keep", [optimizer], [net[2].weight])


def test_does_not_warn_if_all_state_belongs_to_parameters():
    net, optimizer = stepped(lambda parameters: Hidden(parameters, "nothing"))
    follow_policy("touched", [optimizer], [net[2].weight])
    assert list(optimizer.state) == [net[0].weight]


# --- the step count of Adam after a unit reset, which docs/redo.md names ----------------------------------------------


def test_the_first_updates_of_a_reset_unit_by_adam_are_three_to_seven_times_as_large():
    """PyTorch counts the steps of a whole tensor, so the moments of the reset unit are not bias-corrected."""
    net = nn.Sequential(nn.Linear(3, 4, bias=False), nn.ReLU(), nn.Linear(4, 2, bias=False)).double()
    weight, optimizer = net[0].weight, Adam(net.parameters(), lr=1e-6)

    def steady_step() -> torch.Tensor:
        before = weight.detach().clone()
        for parameter in net.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        return (before - weight.detach())[:, 0] / 1e-6

    steady_step()
    for state in optimizer.state.values():  # as after many steps with this gradient
        state["step"].fill_(5_000)
        state["exp_avg"].fill_(1), state["exp_avg_sq"].fill_(1)
    update = steady_step()
    torch.testing.assert_close(update, torch.ones(4, dtype=torch.double), rtol=0.01, atol=0)
    layer = HiddenUnits().select(net, lambda: net(torch.rand(5, 3).double()))[0]
    Change(parts=unit_resets([(layer, torch.tensor([1]))], 0, optimizer)).make()
    updates = torch.stack([steady_step() for _ in range(1000)])
    assert updates[:, 1].argmax() in (11, 12)
    for number, factor in ((1, 3.16), (13, 6.58), (50, 4.52), (1000, 1.26)):
        assert updates[number - 1, 1].item() == pytest.approx(factor, rel=0.01), number
        assert updates[number - 1, 0].item() == pytest.approx(1, rel=0.01)
