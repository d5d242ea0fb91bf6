"""Methods write in place: what a CUDA graph has captured, the addresses of all tensors, stays valid."""

from dataclasses import fields, replace

import pytest
import torch
from methods_table import MADE
from torch import nn

from lightning_fire import OptimizerReset
from lightning_fire.methods import EventMethod, Loop, initial_values


def network():
    first = nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(24, 12), nn.LayerNorm(12)
    model = nn.Sequential(*first, nn.ReLU(), nn.Linear(12, 12), nn.ReLU())
    model.add_module("head", nn.Linear(12, 3))
    return model


def addresses(model, optimizer):
    """The addresses of parameters, their gradients, buffers and the state of an optimizer, by name."""
    found = {name: tensor.data_ptr() for name, tensor in model.state_dict(keep_vars=True).items()}
    for name, parameter in model.named_parameters():
        found[f"gradient of {name}"] = 0 if parameter.grad is None else parameter.grad.data_ptr()
        state = optimizer.state.get(parameter, {})
        found |= {
            f"{key} of {name}": value.data_ptr() for key, value in state.items() if isinstance(value, torch.Tensor)
        }
    return found


@pytest.mark.parametrize("name", [name for name in MADE if MADE[name].name != OptimizerReset.name])
def test_every_tensor_stays_at_its_address(name):
    method = MADE[name]
    if "head" in {field.name for field in fields(method)}:
        method = replace(method, head="head")
    if "optimizer_state" in {field.name for field in fields(method)}:
        method = replace(method, optimizer_state="keep")
    model, x = network(), torch.randn(16, 2, 4, 4)
    if isinstance(method, EventMethod):
        method.prepare(model)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)

    def loss():
        return model(x).square().mean()

    def step():
        optimizer.zero_grad(set_to_none=False)
        loss().backward()
        optimizer.step()

    initial = initial_values(model)
    step()
    loop = Loop(optimizer, lambda: model(x), lambda: [loss(), loss()], initial)
    before = addresses(model, optimizer)
    if isinstance(method, EventMethod):
        method(model, loop)
        step()
    else:
        attached = method.attach(model, loop)
        for _ in range(5):
            optimizer.zero_grad(set_to_none=False)
            loss().backward()
            attached.before_step(optimizer)
            optimizer.step()
            attached.after_step()
    assert before.items() <= addresses(model, optimizer).items()  # injections add some
    assert all(before[f"exp_avg of {key}"] for key, parameter in model.named_parameters() if parameter.grad is not None)
