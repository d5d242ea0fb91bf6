"""Every event method beside every step method, with several optimizers: no warning, no error."""

import pytest
import torch
from methods_table import made
from torch import nn
from torch.nn.functional import cross_entropy

from lightning_fire import METHODS, initial_values
from lightning_fire.methods import EventMethod, Loop

EVENTS = [kind for kind in METHODS if issubclass(kind, EventMethod)]
STEPS = [kind for kind in METHODS if not issubclass(kind, EventMethod)]
OPTIMIZERS = [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop]


@pytest.mark.parametrize("step", STEPS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("event", EVENTS, ids=lambda kind: kind.name)
def test_a_training_with_both_is_quiet_and_finite(event, step):
    for optimizer_of in OPTIMIZERS:
        torch.manual_seed(0)
        model, x, y = nn.Sequential(), torch.randn(12, 6), torch.arange(12) % 3
        for name, layer in {"first": nn.Linear(6, 8), "norm": nn.LayerNorm(8), "relu": nn.ReLU()}.items():
            model.add_module(name, layer)
        model.extend([nn.Linear(8, 8), nn.ReLU()])
        model.add_module("head", nn.Linear(8, 3))
        method = made(event, "head")
        method.prepare(model)
        optimizer = optimizer_of(model.parameters(), 1e-2)
        loop = Loop(
            optimizer,
            lambda model=model, x=x: model(x),
            lambda model=model, x=x, y=y: (cross_entropy(model(x), y) for _ in range(2)),
            initial_values(model),
        )
        attached = made(step).attach(model, loop)
        for number in range(6):
            if number == 3:
                method(model, loop)
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            attached.before_step(optimizer)
            optimizer.step()
            attached.after_step()
        assert all(parameter.isfinite().all() for parameter in model.parameters())
