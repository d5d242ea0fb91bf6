"""A model whose weights are on several devices; no device is needed for that."""

import contextlib

import pytest
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from lightning_fire import Weights, fire_, full_reset_, methods, shrink_and_perturb_


@pytest.mark.parametrize(
    "act",
    [
        lambda model: fire_(model, Weights(preset="cnn")),
        lambda model: full_reset_(model, methods.initial_values(model)),
        lambda model: shrink_and_perturb_(model, methods.initial_values(model)),
        lambda model: methods.Tortoise(model).reset_(),
        lambda model: methods.Parseval(0.1).attach(model).metrics(),
        lambda model: methods.L2Init(0.1).attach(model, methods.Loop(initial=methods.initial_values(model))).metrics(),
    ],
)
def test_weights_may_be_on_several_devices(act):
    with FakeTensorMode():
        model = nn.Sequential(nn.Linear(8, 16, device="cuda:0"), nn.ReLU(), nn.Linear(16, 4, device="cuda:1"))
        with contextlib.suppress(DataDependentOutputException):  # it gets as far as reading a value
            act(model)
