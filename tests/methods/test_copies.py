"""Which tensors of optimizers are copies of weights."""

import copy

import pytest
import torch
from test_verify import network, step

from lightning_fire import fire_


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_an_equal_model_in_an_optimizer_of_its_own_is_no_copy(dtype):
    model, ours = network(dtype), network(dtype)
    other = copy.deepcopy(model).float()  # as the second critic, or a model in another precision
    optimizers = [torch.optim.Adam(each.parameters(), lr=0.0) for each in (model, ours, other)]
    for each, optimizer in zip((model, ours, other), optimizers, strict=True):
        step(each, optimizer)
    before = [p.detach().clone() for p in [*ours.parameters(), *other.parameters()]]
    fire_(model, optimizers=optimizers)
    assert not torch.equal(model[0].weight, ours[0].weight)
    assert all(map(torch.equal, before, [*ours.parameters(), *other.parameters()]))
    assert all(optimizer.state[p] for optimizer in optimizers[1:] for p in optimizer.param_groups[0]["params"])
    assert not optimizers[0].state.get(model[0].weight)
