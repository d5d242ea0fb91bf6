"""Everything in a model that could be selected: Linear, convolution and attention weights, with their layouts."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils import parametrize

from lightning_fire._lightning import children_of, without_compile_wrapper
from lightning_fire.distributed import local
from lightning_fire.where.fused import Part, classes_of, parts_of, role_of, split
from lightning_fire.where.memory import Place, overlapping, place_of
from lightning_fire.where.weight_view import Layout, WeightView

_CONV = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@dataclass
class Candidate:
    """A weight of a model, or a tensor of a file, that could be selected.

    Attributes:
        views: Its parts: one, several for a fused weight, none if it is not the weight of a layer.
        reason: Why it can never be selected; empty if it can.
        note: A remark for the table.
        attention: Whether it holds a query, key or value projection, in a known order or not.
        aliases: Its other names, which patterns match as well.
        parametrization: What computes it, such as `weight_norm`; its views then only have the right shapes.
    """

    name: str
    views: Sequence[WeightView] = ()
    reason: str = ""
    note: str = ""
    attention: bool = False
    aliases: tuple[str, ...] = ()
    parametrization: str = ""

    def __post_init__(self) -> None:
        self.attention = self.attention or any(view.role for view in self.views)


_LOW_RANK = re.compile(r"\blora_[AB]\b")  # of PEFT; B is near 0 by design


def candidates_of(model: nn.Module) -> list[Candidate]:
    """List the candidates of a model, in module order, tied weights once."""
    for name, parameter in model.named_parameters():
        if isinstance(parameter, UninitializedParameter):
            name = plain(name)
            raise ValueError(
                f"{name} is not initialised yet: let the model see a batch before the weights are selected"
            )
    found: dict[nn.Parameter, Candidate] = {}
    modules = dict(model.named_modules())
    for path, module in modules.items():
        parent, _, leaf = path.removesuffix("._orig_mod").rpartition(".")
        for candidate in _of_module(plain(path), leaf, module, modules.get(parent, model)):
            found.setdefault(candidate.views[0].parameter, candidate)
    named = {candidate.name: parameter for parameter, candidate in found.items()}
    named |= {plain(name): parameter for name, parameter in model.named_parameters() if parameter not in found}
    shared = _sharing_memory(named)
    targets = _target_networks({plain(path): module for path, module in modules.items()})
    for candidate in found.values():
        target = "target network" if candidate.name.startswith(targets) else ""
        adapter = "low-rank factor of an adapter" if _LOW_RANK.search(candidate.name) else ""
        candidate.reason = candidate.reason or target or adapter or shared.get(candidate.name, "")
    return list(found.values())


def _sharing_memory(named: Mapping[str, nn.Parameter]) -> dict[str, str]:
    """Return reasons of parameters that overlap others; of several with the same memory the first has none."""
    places = {name: place for name, parameter in named.items() if (place := place_of(local(parameter)))}
    firsts: dict[Place, str] = {}
    for name, place in places.items():
        firsts.setdefault(place, name)
    others = {name: firsts[place] for name, place in places.items() if firsts[place] != name}
    others |= overlapping({name: place for place, name in firsts.items()})
    return {name: f"sharing memory with {other}" for name, other in others.items()}


def _target_networks(modules: Mapping[str, nn.Module]) -> tuple[str, ...]:
    """Return the prefixes of modules such as `q_net_target` or `target_q_net` beside a `q_net` of equal shapes."""
    found = []
    for path, module in modules.items():
        parent, dot, leaf = path.rpartition(".")
        online = modules.get(f"{parent}{dot}{re.sub('^target_|_target$', '', leaf)}", module)
        if online is not module and _shapes(online) == _shapes(module):
            found.append(f"{path}.")
    return tuple(found)


def _shapes(module: nn.Module) -> list[tuple[str, torch.Size]]:
    return [(name, parameter.shape) for name, parameter in module.named_parameters()]


def weight_layers(model: nn.Module) -> list[nn.Module]:
    """List the Linear and convolution layers of a model, including Hugging Face's Conv1D.

    Args:
        model: Any module.
    """
    return [module for module in model.modules() if _is_layer(module)]


def plain(name: str) -> str:
    """Return a name without the prefix that `torch.compile` gives."""
    return ".".join(part for part in name.split(".") if part != "_orig_mod")


def _of_module(path: str, leaf: str, module: nn.Module, parent: nn.Module) -> Iterator[Candidate]:
    prefix = f"{path}." if path else ""
    if isinstance(module, nn.MultiheadAttention):
        yield from _of_multihead_attention(prefix, module)
        return
    weight, parametrization = _weight_of(module, "weight", _stored_shape(module)) if _is_layer(module) else (None, "")
    if weight is None:
        return
    layout: Layout = "in_out" if _is_conv1d(module) else "out_in"
    layout = "transposed_conv" if isinstance(module, _TRANSPOSED) else layout
    whole = WeightView(f"{prefix}weight", weight, getattr(module, "groups", 1), layout)
    reason = _why_never(whole)
    children = children_of(parent).items()
    siblings = [name for name, child in children if child is not None and _is_layer(without_compile_wrapper(child))]
    parts = parts_of(leaf, siblings, parent, whole.shape) if whole.groups == 1 else []
    if isinstance(parts, str):
        yield Candidate(whole.name, [whole], reason or parts, attention=True, parametrization=parametrization)
        return
    views = split(whole, parts) or [replace(whole, role=role_of(leaf, siblings))]
    yield Candidate(whole.name, views, reason, parametrization=parametrization)


def _is_conv1d(module: object) -> bool:
    """Return whether a module is Hugging Face's Conv1D, a Linear whose weight is stored `(in, out)`."""
    return "Conv1D" in classes_of(module) and hasattr(module, "nf")


def _is_layer(module: object) -> bool:
    return isinstance(module, (nn.Linear, *_CONV, *_TRANSPOSED)) or _is_conv1d(module)


def _of_multihead_attention(prefix: str, module: nn.MultiheadAttention) -> Iterator[Candidate]:
    width = module.embed_dim
    packed = module.kdim == width and module.vdim == width
    shapes = {"q_proj_weight": (width, width), "k_proj_weight": (width, module.kdim)}
    shapes["v_proj_weight"] = (width, module.vdim)
    for name, shape in {"in_proj_weight": (3 * width, width)}.items() if packed else shapes.items():
        weight, parametrization = _weight_of(module, name, shape)
        if weight is None:
            continue
        whole = WeightView(prefix + name, weight, role="" if packed else name[0])
        parts = [Part(role, index * width, (index + 1) * width) for index, role in enumerate("qkv")]
        views = split(whole, parts) if packed else [whole]
        yield Candidate(whole.name, views, _why_never(whole), parametrization=parametrization)


def _why_never(view: WeightView) -> str:
    if not view.parameter.is_floating_point():  # before frozen: a quantised weight is always frozen too
        return f"quantised or complex ({view.parameter.dtype})"
    if not view.parameter.requires_grad:
        return "frozen (requires_grad=False)"
    if view.parameter.numel() == 0:
        return "empty"
    if view.groups > 1 and view.shape[1] == 1:
        return "depthwise convolution: single columns, no matrices"
    return ""


def _weight_of(module: nn.Module, name: str, shape: tuple[int, ...]) -> tuple[nn.Parameter | None, str]:
    """Return a weight, and what computes it: parametrizations, or hooks of the old kind; empty if nothing.

    For a computed weight a parameter of its shape stands in: to compute it may change buffers.
    """
    own = dict(nn.Module.named_parameters(module, recurse=False, remove_duplicate=False))
    sources = [parameter for key, parameter in own.items() if key.startswith(f"{name}_")]
    if parametrize.is_parametrized(module, name):
        parametrizations = module.get_submodule("parametrizations").get_submodule(name)
        by = ", ".join(type(part).__name__.lstrip("_") for part in parametrizations.children())
        sources = list(parametrizations.parameters())
    elif {f"{name}_g", f"{name}_v"} <= own.keys():
        by = "weight_norm"
    elif f"{name}_orig" in own:
        by = "pruning" if hasattr(module, f"{name}_mask") else "spectral_norm"
    else:
        return own.get(name), ""
    trained = any(source.requires_grad for source in sources)
    return nn.Parameter(torch.empty(shape, device="meta"), requires_grad=trained), by


def _stored_shape(module: Any) -> tuple[int, ...]:
    if isinstance(module, nn.Linear):
        return module.out_features, module.in_features
    if _is_conv1d(module):
        return getattr(module, "nx", module.nf), module.nf
    channels = [module.out_channels, module.in_channels]
    first, second = reversed(channels) if isinstance(module, _TRANSPOSED) else channels
    return first, second // module.groups, *module.kernel_size


def is_causal_language_model(model: nn.Module) -> bool:
    """Return whether a model predicts each token from those before it.

    That is: a Linear layer has the shape of an embedding, `(vocabulary, width)`, tied to it or not, and some module is
    causal, by an attribute `is_causal` (most of transformers, and `GPT`) or by "Causal" in the name of its class
    (nanoGPT's `CausalSelfAttention`), and none has `is_causal=False`, as attention in an encoder has.
    """
    modules = list(model.modules())
    embeddings = {(m.num_embeddings, m.embedding_dim) for m in modules if isinstance(m, nn.Embedding)}
    outputs = {(m.out_features, m.in_features) for m in modules if isinstance(m, nn.Linear)}
    causal = [getattr(m, "is_causal", "Causal" in type(m).__name__ or None) for m in modules]
    said = any(c is True for c in causal) and not any(c is False for c in causal)
    return said and not embeddings.isdisjoint(outputs)
