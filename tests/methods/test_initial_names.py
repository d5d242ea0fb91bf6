"""Initial values that were taken before a model was compiled."""

import pytest
import torch
from torch import nn

from lightning_fire import FullReset, L2Init, ShrinkAndPerturb, initial_values
from lightning_fire.methods import Loop


@pytest.mark.parametrize("method", [FullReset(), ShrinkAndPerturb(1.0), L2Init(0.1)], ids=lambda method: method.name)
def test_they_belong_to_the_compiled_model_too(method):
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    initial = initial_values(model)
    for parameter in model.parameters():
        nn.init.constant_(parameter, 0.5)
    compiled, loop = torch.compile(model), Loop(initial=initial)
    if isinstance(method, L2Init):
        expected = 0.1 * sum((p - initial[name]).square().sum() for name, p in model.named_parameters())
        assert method.attach(compiled, loop).metrics()["penalty"] == pytest.approx(expected.item())
    else:
        method(compiled, loop)
        assert all(torch.equal(value, initial[name]) for name, value in model.state_dict().items())
