"""Check that the parts called query, key and value are that."""

import torch
from torch import nn

from lightning_fire.where import Weights


def known(module: nn.Module) -> nn.Module:
    """Make a module one of a library whose orders of rows are known."""

    def forward(self, *inputs):
        raise NotImplementedError

    forward.__module__ = "timm.layers.attention"
    module.__class__ = type(type(module).__name__, (type(module),), {"forward": forward})
    return module


def output(model, *inputs, **named):
    with torch.no_grad():
        result = model(*inputs, **named)
    return next((getattr(result, key) for key in ("logits", "last_hidden_state") if hasattr(result, key)), result)


def assert_queries_do_not_matter_without_keys(model, *inputs, **named):
    """With all keys zero attention is uniform: what are called queries must then change nothing, values must."""
    model.eval()
    views = Weights("cnn").select(model)
    for view in views:
        if view.role == "k":
            view.write(torch.zeros(view.shape))
    uniform = output(model, *inputs, **named)
    for view in views:
        if view.role == "q":
            view.write(torch.randn(view.shape))
    torch.testing.assert_close(output(model, *inputs, **named), uniform)
    for view in views:
        if view.role == "v":
            view.write(torch.randn(view.shape))
    assert (output(model, *inputs, **named) - uniform).abs().max() > 1e-3
