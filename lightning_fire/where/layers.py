"""Everything in a model that could be selected: Linear, convolution and attention weights, with their layouts."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils import parametrize

from lightning_fire._lightning import children_of, without_compile_wrapper
from lightning_fire.distributed import local
from lightning_fire.where.memory import Place, overlapping, place_of
from lightning_fire.where.weight_view import Layout, WeightView

_CONV = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


class Part(NamedTuple):
    """A part of a fused weight: the first and the last + 1 of its outputs in each of some equal blocks."""

    role: str
    first: int
    last: int
    blocks: int = 1


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


def split(whole: WeightView, parts: list[Part]) -> list[WeightView]:
    """Return the parts of a fused weight."""
    named = [(f"{whole.name}[{part.role}]", part) for part in parts]
    return [replace(whole, name=n, rows=(p.first, p.last), blocks=p.blocks, role=p.role) for n, p in named]


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
    return "Conv1D" in _classes(module) and hasattr(module, "nf")


def _is_layer(module: object) -> bool:
    return isinstance(module, (nn.Linear, *_CONV, *_TRANSPOSED)) or _is_conv1d(module)


def _classes(module: object) -> set[str]:
    """Return the names of a module's classes: parametrizations and FSDP2 derive one of their own."""
    return {kind.__name__ for kind in type(module).__mro__}


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


_QUERY = {"q", "q_proj", "query", "query_proj", "to_q", "q_lin", "wq", "q_attn"}
_KEY = {"k", "k_proj", "key", "key_proj", "to_k", "k_lin", "wk"}
_VALUE = {"v", "v_proj", "value", "value_proj", "to_v", "v_lin", "wv"}
_KEY_VALUE = {"kv", "kv_proj", "to_kv", "Wkv"}
_FUSED = {"qkv", "qkv_proj", "to_qkv", "c_attn", "Wqkv", "in_proj", "query_key_value"}
INTERLEAVED = "fused query-key-value in an interleaved order"
# CodeGen, DeBERTa and MiniMax give an interleaved projection a name that elsewhere means three blocks
_INTERLEAVED_PARENTS = {"CodeGenAttention", "DisentangledSelfAttention", "MiniMaxLightningAttention"}
# GPT-NeoX, BLOOM and Persimmon: query, key and value of each head side by side
_BY_HEADS = {"GPTNeoXAttention", "GPTNeoXJapaneseAttention", "BloomAttention", "PersimmonAttention"}
# LeViT, TinyViT and EfficientFormer; bottleneck and halo attention; lambda layers: parts of different widths
_UNEVEN = (("key_dim", "val_dim"), ("dim_head_qk", "dim_head_v"), ("dim_qk", "dim_v"))

_HEADS = ("num_heads", "num_attention_heads", "n_head", "n_heads", "heads")
_KEY_VALUE_HEADS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "kv_heads")


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


def role_of(leaf: str, siblings: Collection[str]) -> str:
    """Return `q`, `k`, `v` or nothing for an unfused layer. A query is one only beside a key, and conversely."""
    names = set(siblings)
    has_query, has_key = names & _QUERY, names & (_KEY | _KEY_VALUE | {"c_attn"})
    if leaf in _QUERY and has_key:
        return "q"
    if leaf in _KEY and has_query:
        return "k"
    return "v" if leaf in _VALUE and has_query and has_key else ""


def parts_of(leaf: str, siblings: Collection[str], parent: object, shape: tuple[int, ...]) -> list[Part] | str:
    """Split the outputs of a fused projection: the parts, none if it is not fused, or why they are not known.

    Args:
        leaf: Name of the layer.
        siblings: Names of the layers beside it, and its own.
        parent: The module that holds them; of a file, an object whose class and attributes are those of that module.
        shape: Of the weight, `(out, in)`.
    """
    out, inputs = shape[:2]
    key_value = (leaf in _KEY_VALUE and set(siblings) & _QUERY) or (leaf == "c_attn" and "q_attn" in siblings)
    fused = leaf in _FUSED
    if leaf == "in_proj":  # state-space and gated-convolution layers have one too
        fused = out == 3 * inputs and any(hasattr(parent, name) for name in _HEADS)
    if not (key_value or fused):
        return []
    if leaf == "query_key_value":
        return _by_heads(out, parent)
    if _is_interleaved(parent):
        return INTERLEAVED
    if any(hasattr(parent, key) and hasattr(parent, value) for key, value in _UNEVEN):
        return "fused query-key-value whose keys and values have widths of their own"
    return _halves(out) if key_value else _thirds(out, inputs, parent)


def _by_heads(out: int, parent: object) -> list[Part] | str:
    """Split a projection that holds, for each head of keys, its queries, the key and the value side by side."""
    heads, blocks = _number(parent, _HEADS), None
    if _classes(parent) & _BY_HEADS:
        blocks = heads
    elif "FalconAttention" in _classes(parent):
        shared = 1 if getattr(parent, "multi_query", False) else heads
        grouped = getattr(parent, "new_decoder_architecture", False)
        blocks = _number(parent, ("num_kv_heads",)) if grouped else shared
    if not heads or not blocks or heads % blocks or out % (heads + 2 * blocks):
        return INTERLEAVED
    width = out // (heads + 2 * blocks)
    query = width * heads // blocks
    ends = ("q", 0, query), ("k", query, query + width), ("v", query + width, query + 2 * width)
    return [Part(role, first, last, blocks) for role, first, last in ends]


def _is_interleaved(parent: object) -> bool:
    if _classes(parent) & _INTERLEAVED_PARENTS:
        return True
    # MaxViT and CoAtNet; GPT-BigCode
    return getattr(parent, "head_first", False) is True or getattr(parent, "multi_query", True) is False


def _halves(out: int) -> list[Part] | str:
    if out % 2:
        return f"fused key-value of width {out}, not a multiple of 2"
    return [Part("k", 0, out // 2), Part("v", out // 2, out)]


def _thirds(out: int, inputs: int, parent: object) -> list[Part] | str:
    """Split into three blocks, smaller ones for keys and values if the parent announces fewer heads of them."""
    heads, key_value_heads = _number(parent, _HEADS), _number(parent, _KEY_VALUE_HEADS)
    if getattr(parent, "multi_query", False) is True:  # GPT-BigCode, MPT
        key_value_heads = 1
    if heads and key_value_heads and heads != key_value_heads:  # grouped-query attention
        width, rest = divmod(out, heads + 2 * key_value_heads)
        query, key = heads * width, key_value_heads * width
        if rest:
            return f"fused query-key-value of width {out} that {heads} + 2·{key_value_heads} heads do not divide"
        return [Part("q", 0, query), Part("k", query, query + key), Part("v", query + key, out)]
    if out % 3:
        return f"fused query-key-value of width {out}, not a multiple of 3"
    if out != 3 * inputs and (heads is None or out % (3 * heads)):
        return f"fused query-key-value of width {out}: neither 3·{inputs} nor a multiple of three times its heads"
    return [Part("q", 0, out // 3), Part("k", out // 3, 2 * out // 3), Part("v", 2 * out // 3, out)]


def _number(parent: object, names: Collection[str]) -> int | None:
    """Look a number up in a module, or else in its `config`."""
    values = [getattr(owner, name, None) for owner in (parent, getattr(parent, "config", None)) for name in names]
    return next((value for value in values if isinstance(value, int) and value > 0), None)
