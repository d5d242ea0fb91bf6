"""The pretended device of the tests: values of the CPU, recorded waits, and the errors of a real device."""

import pytest
import torch
from pretended import Pretended
from torch import nn


def losses_on(device):
    """Losses of some steps of a network with most kinds of operations."""
    torch.manual_seed(0)
    layers = (
        nn.Conv2d(3, 6, 3),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(24, 8),
        nn.GELU(),
        nn.Linear(8, 4),
    )
    model, x = nn.Sequential(*layers).to(device), torch.randn(5, 3, 4, 4).to(device)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(3):
        loss = nn.functional.cross_entropy(model(x), torch.arange(5, device=device) % 4)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield float(loss.detach())


def test_training_has_the_values_of_the_cpu():
    with Pretended():
        assert list(losses_on("cuda")) == list(losses_on("cpu"))


def test_second_derivatives_are_those_of_the_cpu():
    def product(device):
        x = torch.tensor([1.0, 2.0], device=device, requires_grad=True)
        (gradient,) = torch.autograd.grad((x**3).prod(), x, create_graph=True)
        (found,) = torch.autograd.grad(gradient, x, torch.tensor([1.0, -1.0], device=device))
        return found.tolist()

    with Pretended():
        assert product("cuda") == product("cpu")


WAITS = {
    "item": lambda x: x[0, 0].item(),
    "tolist": lambda x: x.tolist(),
    "bool": lambda x: bool(x.sum() > 0),
    "equal": lambda x: torch.equal(x, x),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "index of the CPU": lambda x: x[torch.tensor([0])],
    "to the CPU": lambda x: x.cpu(),
    "from the CPU": lambda x: x.copy_(torch.zeros(2, 2)),
    "new": lambda x: torch.tensor(1.0, device="cuda"),
}
FREE = {
    "not blocking": lambda x: torch.zeros(2).to("cuda", non_blocking=True),
    "copy that is not blocking": lambda x: x.copy_(torch.zeros(2, 2), non_blocking=True),
    "masked fill": lambda x: x.__setitem__(x > 0, 0.0),
    "product": lambda x: (x @ x).sum(),
    "draw": lambda x: x.normal_(),
    "other device": lambda x: x.to("cuda:1"),
}


@pytest.mark.parametrize("call", [*WAITS.values(), *FREE.values()], ids=[*WAITS, *FREE])
def test_waits_are_counted(call):
    with Pretended() as pretended:
        x = torch.ones(2, 2, device="cuda")
        call(x)
        assert pretended.count == (call in WAITS.values())
        torch.linalg.svd(x)
        assert sum(pretended.decompositions.values()) == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x + torch.ones(2, 2),
        lambda x: x + torch.ones(2, 2, device="cuda:1"),
        lambda x: torch.stack([x.sum(), torch.tensor(1.0)]),
        lambda x: x.normal_(generator=torch.Generator("cpu")),
        lambda x: torch.randn(2, generator=torch.Generator("cpu"), device="cuda"),
    ],
)
def test_mixed_devices_are_an_error(call):
    with Pretended(), pytest.raises(RuntimeError, match=r"device|generator of cpu"):
        call(torch.ones(2, 2, device="cuda"))


def test_draws_leave_the_generator_of_the_cpu_alone():
    before = torch.get_rng_state()
    with Pretended():
        torch.randn(3, device="cuda")
        nn.Linear(2, 2, device="cuda")
    assert torch.equal(torch.get_rng_state(), before)
