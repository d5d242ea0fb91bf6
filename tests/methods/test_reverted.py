"""One look before the second step after an event: whether the new weights are still there."""

import copy
import gc
import warnings
import weakref

import pytest
import torch
from methods_table import EVENTS
from torch import nn
from torch.optim.optimizer import _global_optimizer_pre_hooks
from torch.optim.swa_utils import AveragedModel

from lightning_fire import FIRE, FullReset, Loop, ShrinkAndPerturb, fire_
from lightning_fire.methods.base.reverted import _samples

X = torch.randn(32, 8, generator=torch.Generator().manual_seed(0))
Y = torch.randn(32, 16, generator=torch.Generator().manual_seed(1))
BACK = r"An event has no effect: .*0\.weight, 3\.weight again point\(s\) in the old direction"


def network(dtype=torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 16)).to(dtype)


def step(model, optimizer, number=1):
    def closure():
        optimizer.zero_grad()
        kind = model[0].weight.dtype
        loss = nn.functional.mse_loss(model(X.to(kind)), Y.to(kind))
        loss.backward()
        return loss

    for _ in range(number):
        optimizer.step(closure)


class Masters(torch.optim.Optimizer):
    """Steps float32 copies of its parameters, out of reach."""

    def __init__(self, params):
        params = list(params)
        super().__init__(params, {"lr": 1e-2})
        masters = [p.detach().float().clone() for p in params]
        inner = torch.optim.AdamW(masters, lr=1e-2)

        def run():
            for p, master in zip(params, masters, strict=True):
                master.grad = p.grad.float()
            inner.step()
            for p, master in zip(params, masters, strict=True):
                p.copy_(master)

        self.run = run

    @torch.no_grad()
    def step(self, closure):
        with torch.enable_grad():
            closure()
        self.run()


@pytest.mark.parametrize("given", [True, False], ids=["given", "not given"])
def test_copies_from_which_an_optimizer_steps_are_seen(given):
    model = network(torch.bfloat16)
    optimizer = Masters(model.parameters())
    step(model, optimizer, 3)
    fire_(model, optimizers=[optimizer] if given else [])
    step(model, optimizer)
    with pytest.warns(UserWarning, match=BACK):
        step(model, optimizer)
    step(model, optimizer, 3)  # one look


def test_an_optimizer_of_copies_alone_is_refused():
    model = network(torch.bfloat16)
    masters = [p.detach().float().clone().requires_grad_() for p in model.parameters()]
    with pytest.raises(ValueError, match=r"train no parameter of Sequential: .*or step copies of its weights"):
        fire_(model, optimizers=torch.optim.AdamW(masters))


@pytest.mark.parametrize("steps", [0, 1])
def test_a_checkpoint_that_is_loaded_is_seen(steps):
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    old = copy.deepcopy(model.state_dict())
    fire_(model, optimizers=optimizer)
    step(model, optimizer, steps)
    model.load_state_dict(old)
    step(model, optimizer, 1 - steps)
    with pytest.warns(UserWarning, match=BACK):
        step(model, optimizer)


def test_an_average_that_is_swapped_in_is_seen():
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    average = AveragedModel(model)
    average.update_parameters(model)
    fire_(model, optimizers=optimizer)  # which does not know the average
    step(model, optimizer)
    model.load_state_dict(average.module.state_dict())
    with pytest.warns(UserWarning, match=BACK):
        step(model, optimizer)


@torch.no_grad()
def normalize(weight):
    weight.div_(weight.norm(dim=1, keepdim=True))


CONSTRAINTS = {
    "normalized": normalize,
    "max-norm": lambda weight: weight.renorm_(2, 0, 0.5),
    "clipped": lambda weight: weight.clamp_(-0.05, 0.05),
    "norm": lambda weight: weight.mul_(3.0 / weight.norm()),
}


@pytest.mark.parametrize("event", [FIRE(), FullReset(fresh_seed=0), ShrinkAndPerturb(0.02, fresh_seed=0)])
@pytest.mark.parametrize("name", CONSTRAINTS)
def test_a_constraint_after_each_step_is_not_meant(name, event):
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def constrained():
        step(model, optimizer)
        with torch.no_grad():
            for index in (0, 3):
                CONSTRAINTS[name](model[index].weight)

    for _ in range(3):
        constrained()
    for _ in range(2):  # the second finds isometries
        event(model, Loop(optimizer))
        for _ in range(3):
            constrained()


OPTIMIZERS = {
    "sgd, lr 1000": lambda p: torch.optim.SGD(p, 1000.0),
    "sgd, decay to 0": lambda p: torch.optim.SGD(p, 1.0, weight_decay=1.0),
    "adam, lr 1000": lambda p: torch.optim.Adam(p, 1000.0),
    "adamw, decay": lambda p: torch.optim.AdamW(p, 0.1, weight_decay=10.0),
    "lr 0": lambda p: torch.optim.SGD(p, 0.0),
    "lbfgs": lambda p: torch.optim.LBFGS(p, 1.0, max_iter=50, line_search_fn="strong_wolfe"),
    "own lbfgs": lambda p: type("Own", (torch.optim.LBFGS,), {})(p, 1.0, max_iter=50),
}


@pytest.mark.parametrize("event", [FIRE(), FullReset(fresh_seed=0), ShrinkAndPerturb(0.02, fresh_seed=0)])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_honest_steps_are_not_meant(name, event):
    """Also steps that reach the old weights by themselves: the loss is convex, and LBFGS minimizes it in a step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16))
    step(model, torch.optim.LBFGS(model.parameters(), max_iter=50))
    optimizer = OPTIMIZERS[name](model.parameters())
    event(model, Loop(optimizer))
    step(model, optimizer, 3)


@pytest.mark.parametrize("name", EVENTS)
def test_nothing_is_kept_after_the_second_step_or_of_a_model_that_is_gone(name):
    def trained(steps):
        model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Sequential(nn.Linear(32, 16)))
        method = EVENTS[name]
        if hasattr(method, "head"):
            method = type(method)(head="2")
            method.prepare(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        start = {key: value.clone() for key, value in model.state_dict().items()}
        step(model, optimizer, 3)
        losses = lambda: (nn.functional.mse_loss(model(X), Y) for _ in range(2))  # noqa: E731
        method(model, Loop(optimizer, lambda: model(X), losses, start))
        assert len(_global_optimizer_pre_hooks) <= 1
        step(model, optimizer, steps)
        return [weakref.ref(model), weakref.ref(optimizer), weakref.ref(model[0].weight)]

    _samples.clear()
    for steps in (2, 0):
        alive = trained(steps)
        assert steps == 0 or not _samples
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
        assert [one() for one in alive] == [None] * 3
    assert not _samples
