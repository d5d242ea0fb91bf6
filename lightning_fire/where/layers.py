"""Names, own parameters and biases of the layers of a model."""

import re
from collections.abc import Collection, Container, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn.utils import parametrize

from lightning_fire._private import is_a
from lightning_fire.where.trained import why_not_trained


class ComputedWeight(Parameter):
    """Stand-in, on the meta device, for a weight that a layer computes from other parameters.

    Attributes:
        by: How: the classes of its parametrization, `weight_norm`, `spectral_norm` or `pruning`.
        sources: The parameters that it is computed from.
    """

    by: str
    sources: list[Parameter]


def plain(name: str) -> str:
    """Return a name without the prefix of `torch.compile`."""
    return ".".join(part for part in name.split(".") if part != "_orig_mod")


def own_parameters(module: nn.Module) -> dict[str, Parameter]:
    """Return the parameters of a module itself by name; for a weight that it computes, a `ComputedWeight`.

    By the method of nn.Module, which some libraries override.
    """
    own = dict(nn.Module.named_parameters(module, recurse=False, remove_duplicate=False))
    found: dict[str, tuple[str, list[Parameter]]] = {}
    if parametrize.is_parametrized(module):
        for name, steps in module.get_submodule("parametrizations").named_children():
            by = ", ".join(type(step).__name__.lstrip("_") for step in steps.children())
            found[name] = by, list(steps.parameters(recurse=False))
    for name in own:
        leaf, _, last = name.rpartition("_")
        if last in ("v", "orig") and leaf not in own and isinstance(getattr(module, leaf, None), Tensor):
            other = "pruning" if hasattr(module, f"{leaf}_mask") else "spectral_norm"
            sources = [parameter for key, parameter in own.items() if key in (f"{leaf}_g", name)]
            found[leaf] = "weight_norm" if last == "v" else other, sources
    for name, (by, sources) in found.items():
        if sources:  # the last one has the shape of the weight
            stand_in = ComputedWeight(torch.empty(sources[-1].shape, device="meta"))
            stand_in.by, stand_in.sources = by, sources
            own[name] = stand_in
    return own


def injected_heads(model: nn.Module) -> tuple[list[str], tuple[str, ...]]:
    """Return the names of the heads that `PlasticityInjection` has wrapped, and the prefixes of their frozen copies."""
    heads = [plain(path) for path, part in model.named_modules() if is_a(part, "InjectedHead")]
    return heads, tuple(f"{head}.{copies}." for head in heads for copies in ("frozen", "taken_away"))


def biases_of(layer: nn.Module, leaf: str, trained: Collection[Tensor] | None = None) -> list[tuple[Parameter, Any]]:
    """Return the trained biases of a weight of a layer, found by their names, each with the index of its part.

    They are called `bias`, or as `bias_ih_l0` beside `weight_ih_l0`, `b_enc` beside `W_enc`, `down_proj_bias` beside
    `down_proj`. In attention `in_proj_bias`, `bias_k` and `bias_v` are those of the projections.

    Args:
        layer: Any module.
        leaf: Name of a parameter of it.
        trained: See `why_not_trained`.
    """
    names = "bias", re.sub("weight|kernel", "bias", leaf), re.sub("^W", "b", leaf), f"{leaf}_bias"
    parts: dict[str, Any] = dict.fromkeys(names, ...)
    if isinstance(layer, nn.MultiheadAttention) and (role := re.fullmatch("(in|q|k|v)_proj_weight", leaf)):
        first = "qkv".find(role[1]) * layer.embed_dim
        parts["in_proj_bias"] = slice(first, first + layer.embed_dim) if first >= 0 else ...
        parts |= {f"bias_{each}": ... for each in "kv" if role[1] in ("in", each)}
    parts.pop(leaf, None)
    own = dict(nn.Module.named_parameters(layer, recurse=False))
    return [
        (own[name], part) for name, part in parts.items() if name in own and not why_not_trained(own[name], trained)
    ]


def biases_beside(
    model: nn.Module, weights: Container[Parameter], trained: Collection[Tensor] | None = None
) -> Iterator[tuple[Parameter, Parameter, Any]]:
    """Iterate over some weights of a model with each of their trained biases and the index of its part."""
    for layer in model.modules():
        for name, weight in nn.Module.named_parameters(layer, recurse=False):
            if weight in weights:
                yield from ((weight, bias, part) for bias, part in biases_of(layer, name, trained))
