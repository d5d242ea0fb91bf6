"""Whether the parts of fused projections are queries, keys and values, by gradients of a forward pass."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lightning_fire.where import WeightView

Parts = Mapping[str, Mapping[str, WeightView]]  # by weight, by role


def confirmed(model: nn.Module, inputs: Any, parts: Parts) -> set[str]:
    """Return weights whose parts are confirmed: without keys queries get no gradient, but values do; and conversely.

    Args:
        model: A model with values; those of the parts are changed.
        inputs: Arguments of its forward pass: a tensor, or keyword arguments.
        parts: Views by weight and role.
    """
    found = set(parts)
    for silent, without in (("q", "k"), ("k", "q")):
        values = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        for weight, views in parts.items():
            if without in views:
                _set_to_zero(model, weight, views[without])
        model.zero_grad()
        with torch.enable_grad():
            out = model(**inputs) if isinstance(inputs, dict) else model(inputs)
            sum(each.double().square().mean() for each in _tensors(out)).backward()
        for weight, views in parts.items():
            gradient = next(iter(views.values())).parameter.grad
            if gradient is None or not {"q", "k", "v"} <= views.keys():
                found.discard(weight)
                continue
            of = {role: view.of(gradient).read().norm().item() for role, view in views.items()}
            if of[silent] > 1e-5 * of["v"] or not of["v"]:
                found.discard(weight)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(values[name])
    return found


@torch.no_grad()
def _set_to_zero(model: nn.Module, weight: str, view: WeightView) -> None:
    view.write(torch.zeros(view.shape))
    bias = dict(model.named_parameters()).get(weight.removesuffix("weight") + "bias")
    if bias is not None and view.rows is not None and len(bias) == len(view.of(view.parameter).parameter):
        bias.unflatten(0, (view.blocks, -1))[:, slice(*view.rows)] = 0


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        if output.is_floating_point() and output.requires_grad:
            yield output
    elif isinstance(output, dict):
        yield from _tensors(list(output.values()))
    elif isinstance(output, list | tuple):
        for part in output:
            yield from _tensors(part)
