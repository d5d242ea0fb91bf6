"""Optimizer state at an event: what is dropped, where it is kept, and what the next step is then."""

import pytest
import torch
from small_training import PlainModule, fitted
from torch import nn
from torch.optim import SGD, Optimizer

from lightning_fire import FIRECallback
from lightning_fire.callbacks.optimizer_state import forget_state


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


@pytest.mark.parametrize("nesterov", [False, True])
def test_fused_sgd_steps_after_an_event_as_if_the_momentum_were_new(nesterov):
    options = {"lr": 0.1, "momentum": 0.9, "nesterov": nesterov, "weight_decay": 0.01}
    steps = []
    for fused in (True, False):
        net, optimizer = stepped(lambda parameters, fused=fused: SGD(parameters, fused=fused, **options))
        forget_state("touched", [optimizer], [net[2].weight])
        step(net, optimizer)
        step(net, optimizer)
        steps.append([parameter.detach() for parameter in net.parameters()])
    for one, other in zip(*steps, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)


def test_fused_sgd_with_dampening_begins_with_a_dampened_step():
    net, optimizer = stepped(lambda parameters: SGD(parameters, 0.1, momentum=0.9, dampening=0.25, fused=True))
    forget_state("touched", [optimizer], [net[2].weight])
    before = net[2].weight.detach().clone()
    step(net, optimizer)
    torch.testing.assert_close(net[2].weight, before - 0.1 * 0.75 * net[2].weight.grad)


@pytest.mark.parametrize(("policy", "touched"), [("touched", 2), ("all", 0), ("all", 1)])
def test_fused_sgd_that_keeps_no_momentum_begins_anew(policy, touched):
    net, optimizer = stepped(lambda parameters: SGD(parameters, 0.1, momentum=0.9, dampening=0.25, fused=True))
    forget_state(policy, [optimizer], list(net.parameters())[:touched])
    assert not optimizer.state
    before = net[2].weight.detach().clone()
    step(net, optimizer)
    torch.testing.assert_close(net[2].weight, before - 0.1 * net[2].weight.grad)


class Fused(PlainModule):
    """Trained by fused SGD."""

    def configure_optimizers(self):
        return SGD(self.parameters(), 0.01, momentum=0.9, fused=True)


def test_an_event_in_a_training_with_fused_sgd():
    class Unfused(Fused):
        def configure_optimizers(self):
            return SGD(self.parameters(), 0.01, momentum=0.9)

    one, other = (fitted(FIRECallback(curvature=False), module=seeded(kind)) for kind in (Fused, Unfused))
    for name, value in one.state_dict().items():
        torch.testing.assert_close(value, other.state_dict()[name], rtol=1e-4, atol=1e-5)


def seeded(kind: type) -> nn.Module:
    torch.manual_seed(0)
    return kind()
