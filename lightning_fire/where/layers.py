"""Candidates of a model for a selection: Linear, convolution and attention weights."""

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

from torch import nn
from torch.nn.parameter import UninitializedParameter

from lightning_fire._private import children_of, has_gradient_hook, is_a
from lightning_fire.distributed import local
from lightning_fire.where.attention import of_multihead_attention, user_of, wraps_one_layer
from lightning_fire.where.bare import bare_weights, recurrent_weights, stacked
from lightning_fire.where.candidate import LOW_RANK, Candidate
from lightning_fire.where.fused import NOT_FUSED, candidate_in, is_attention_name, parts_of, role_of
from lightning_fire.where.low_rank import low_rank_factors
from lightning_fire.where.memory import MemoryRange, overlapping, range_of
from lightning_fire.where.selection import times
from lightning_fire.where.trained import UNTRAINED, why_not_trained
from lightning_fire.where.weight_layers import (
    is_layer,
    is_usual_layer,
    layout_of,
    rescales,
    stored_shape,
    weight_of,
    why_never,
)
from lightning_fire.where.weight_view import Layout, WeightView

HOOKED = "gradient hook, which may freeze a part of it"
ROUTER = "router of experts that are left out"


def candidates_of(
    model: nn.Module, layers: Mapping[type[nn.Module] | str, Layout] | None = None, recurrent: bool = False
) -> list[Candidate]:
    """List the candidates of a model in module order, tied weights once; for `layers` and `recurrent` see `Weights`."""
    for name, parameter in model.named_parameters():
        if isinstance(parameter, UninitializedParameter):
            name = plain(name)
            raise ValueError(
                f"{name} is not initialized yet: let the model see a batch before the weights are selected"
            )
    found: dict[nn.Parameter, Candidate] = {}
    modules = dict(model.named_modules())
    for path, module in modules.items():
        for candidate in _declared(plain(path), module, layers or {}):
            found.setdefault(candidate.views[0].parameter, candidate)
        for candidate in _of_module(plain(path), module, *user_of(path, modules), recurrent):
            found.setdefault(candidate.views[0].parameter, candidate)
    named = {candidate.name: parameter for parameter, candidate in found.items()}
    named |= {plain(name): parameter for name, parameter in model.named_parameters() if parameter not in found}
    shared = _sharing_memory(named)
    targets = _target_networks({plain(path): module for path, module in modules.items()})
    shapes = {candidate.name: candidate.whole.shape for candidate in found.values()}
    biases = {name: tuple(parameter.shape) for name, parameter in named.items() if parameter.ndim == 1}
    factors = low_rank_factors(
        shapes | biases, {name for name, parameter in named.items() if why_not_trained(parameter)}
    )
    routers = _routers(shapes, {name: parameter for name, parameter in named.items() if parameter not in found})
    for candidate in found.values():
        target = "target network" if candidate.name.startswith(targets) else ""
        adapter = LOW_RANK if candidate.name in factors else ROUTER if candidate.name in routers else ""
        if candidate.reason == UNTRAINED and target:
            candidate.reason = target
        candidate.reason = candidate.reason or target or adapter or shared.get(candidate.name, "")
    by_hook = {c.name: has_gradient_hook(c.views[0].parameter) for c in found.values() if not c.reason}
    for candidate in found.values() if not all(by_hook.values()) else ():  # on all of them, it watches or clips
        candidate.reason = candidate.reason or (HOOKED if by_hook[candidate.name] and not candidate.declared else "")
    return list(found.values())


def _routers(layers: Mapping[str, tuple[int, ...]], others: Mapping[str, nn.Parameter]) -> set[str]:
    """Return the layers with one output per expert beside a bare stack, (experts, out, in) or (experts · out, in)."""
    stacks = set()
    for name, parameter in others.items():
        if parameter.ndim in (2, 3) and parameter.shape[0] > 1 and looks_like_a_weight(name):
            module = _parent(name)
            stacks |= {(module, *parameter.shape)}
            if "expert" in module.rpartition(".")[2]:
                stacks |= {(_parent(module), *parameter.shape)}
    routers = {name for name in layers if re.search(r"gat(e|ing)|rout(e|ing)|switch", _parent(name).rpartition(".")[2])}
    return {
        name
        for name in routers
        for module, *shape in stacks
        if module == _parent(_parent(name)) and _is_stack(shape, *layers[name][:2])
    }


def _is_stack(shape: Sequence[int], experts: int, inputs: int) -> bool:
    """Return whether a parameter of this shape holds the weights of as many experts, the flat one for these inputs."""
    if len(shape) == 3:
        return shape[0] == experts
    return 1 < experts < inputs == shape[1] and shape[0] > experts and shape[0] % experts == 0


def _parent(name: str) -> str:
    return name.rpartition(".")[0]


def looks_like_a_weight(name: str) -> bool:
    """Return whether a name looks like that of a weight: `weight_hh_l0`, `W_enc`, `down_proj`; not `down_proj_bias`."""
    leaf = name.rpartition(".")[2]
    return bool(re.search(r"^W|(^|_)(weights?|kernel|w)(_|\d|$)|proj", leaf)) and "bias" not in leaf


def biases_of(layer: nn.Module, weight: str) -> list[tuple[nn.Parameter, Any]]:
    """Return the trained biases of a weight of a layer, found by their names, each with the index of its part.

    They are called `bias`, or as `bias_ih_l0` beside `weight_ih_l0`, `b_enc` beside `W_enc`, `down_proj_bias` beside
    `down_proj`. In attention `in_proj_bias`, `bias_k` and `bias_v` are those of the projections.

    Args:
        layer: Any module.
        weight: Name of a parameter of it.
    """
    names = "bias", re.sub("weight|kernel", "bias", weight), re.sub("^W", "b", weight), f"{weight}_bias"
    parts: dict[str, Any] = dict.fromkeys(names, ...)
    if isinstance(layer, nn.MultiheadAttention) and (role := re.fullmatch("(in|q|k|v)_proj_weight", weight)):
        first = "qkv".find(role[1]) * layer.embed_dim
        parts["in_proj_bias"] = slice(first, first + layer.embed_dim) if first >= 0 else ...
        parts |= {f"bias_{each}": ... for each in "kv" if role[1] in ("in", each)}
    parts.pop(weight, None)
    own = dict(nn.Module.named_parameters(layer, recurse=False))
    return [(own[name], part) for name, part in parts.items() if name in own and not why_not_trained(own[name])]


def biases_beside(
    model: nn.Module, weights: Container[nn.Parameter]
) -> Iterator[tuple[nn.Parameter, nn.Parameter, Any]]:
    """Iterate over some weights of a model with each of their trained biases and the index of its part."""
    for layer in model.modules():
        for name, weight in nn.Module.named_parameters(layer, recurse=False):
            if weight in weights:
                yield from ((weight, bias, part) for bias, part in biases_of(layer, name))


def _sharing_memory(named: Mapping[str, nn.Parameter]) -> dict[str, str]:
    """Return the reasons of parameters that overlap others in memory; the first of several equal ones has none."""
    ranges = {name: own for name, parameter in named.items() if (own := range_of(local(parameter)))}
    firsts: dict[MemoryRange, str] = {}
    for name, own in ranges.items():
        firsts.setdefault(own, name)
    others = {name: firsts[own] for name, own in ranges.items() if firsts[own] != name}
    others |= overlapping({name: own for own, name in firsts.items()})
    return {name: f"sharing memory with {other}" for name, other in others.items()}


def _target_networks(modules: Mapping[str, nn.Module]) -> tuple[str, ...]:
    """Return the prefixes of modules such as `q_net_target` or `target_q_net` beside a `q_net` of equal shapes."""
    found = []
    for path, module in modules.items():
        parent, dot, leaf = path.rpartition(".")
        online = modules.get(f"{parent}{dot}{re.sub('^target_|_target$', '', leaf)}", module)
        shapes = [[(name, p.shape) for name, p in net.named_parameters()] for net in {online, module}]
        if len(shapes) == 2 and shapes[0] == shapes[1]:
            found.append(f"{path}.")
    return tuple(found)


def plain(name: str) -> str:
    """Return a name without the prefix of `torch.compile`."""
    return ".".join(part for part in name.split(".") if part != "_orig_mod")


def injected_heads(model: nn.Module) -> tuple[list[str], tuple[str, ...]]:
    """Return the names of the heads that `PlasticityInjection` has wrapped, and the prefixes of their frozen copies."""
    heads = [plain(path) for path, part in model.named_modules() if is_a(part, "InjectedHead")]
    return heads, tuple(f"{head}.{copies}." for head in heads for copies in ("frozen", "taken_away"))


def _declared(path: str, module: nn.Module, layers: Mapping[type[nn.Module] | str, Layout]) -> Iterator[Candidate]:
    """Yield the parameters of a module whose layout the user has declared, by its class or by their names."""
    for leaf, parameter in nn.Module.named_parameters(module, recurse=False) if layers else ():
        name = plain(f"{path}.{leaf}" if path else leaf)
        for key, layout in layers.items():
            by_class = isinstance(key, type) and isinstance(module, key) and parameter.ndim > 1
            if "parametrizations." not in name and (by_class or (isinstance(key, str) and re.search(key, name))):
                fewest = {"out_in": 2, "in_out": 2}.get(layout, 3)
                if parameter.ndim < fewest:
                    shape = times(parameter.shape)
                    raise ValueError(f"`layers` has {layout!r} for {name}, but it is of shape {shape}")
                whole = stacked(WeightView(name, parameter, layout=layout))
                yield Candidate(name, [whole], why_never(whole), declared=True)
                break


def _of_module(path: str, module: nn.Module, leaf: str, parent: nn.Module, recurrent: bool) -> Iterator[Candidate]:
    prefix = f"{path}." if path else ""
    if isinstance(module, nn.MultiheadAttention):
        yield from of_multihead_attention(prefix, module)
        return
    if isinstance(module, nn.RNNBase | nn.RNNCellBase):
        yield from recurrent_weights(prefix, module, recurrent)
        return
    weight, parametrization = weight_of(module, "weight", stored_shape(module)) if is_layer(module) else (None, "")
    if weight is not None:
        layout = layout_of(module)
        whole = WeightView(f"{prefix}weight", weight, getattr(module, "groups", 1) if weight.ndim > 2 else 1, layout)
        children = children_of(parent).items()
        siblings = [n for n, child in children if child is not None and is_attention_name(n) and wraps_one_layer(child)]
        parts = parts_of(leaf, siblings, parent, whole.shape) if whole.groups == 1 else NOT_FUSED
        reason = why_never(whole) or rescales(module)
        yield candidate_in(parts, whole, reason, role_of(leaf, siblings), parametrization=parametrization)
    if not (is_usual_layer(module) or re.search("Embed|Norm", type(module).__name__)):
        yield from bare_weights(prefix, module, parent, recurrent)
