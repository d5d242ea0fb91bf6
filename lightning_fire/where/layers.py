"""Everything in a model that could be selected: Linear, convolution and attention weights, with their layouts."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils import parametrize

from lightning_fire.where.weight_view import WeightView

_CONV = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@dataclass
class Candidate:
    """A weight that could be selected.

    Attributes:
        name: Name of the weight, without `torch.compile`'s prefix.
        kind: `linear` or `conv`.
        views: Its parts: one, or several for a fused weight.
        obstacle: Why it can never be selected; empty if it can.
        parametrization: What computes it, if it is no parameter itself, such as `weight_norm`. Its views then only
            have the right shapes.
        attention: Whether it holds a query or key projection, in an order that is known or not.
    """

    name: str
    kind: str
    views: list[WeightView] = field(default_factory=list)
    obstacle: str = ""
    parametrization: str = ""
    attention: bool = False

    def __post_init__(self):
        self.attention = self.attention or any(view.role for view in self.views)


def candidates_of(model: nn.Module) -> list[Candidate]:
    """List the candidates of a model, in module order, tied weights once.

    Args:
        model: Any module, compiled or not.

    Raises:
        ValueError: If a lazy layer is not initialised yet.
    """
    for name, parameter in model.named_parameters():
        if isinstance(parameter, UninitializedParameter):
            name = plain(name)
            raise ValueError(
                f"{name} is not initialised yet: let the model see a batch before the weights are selected"
            )
    found: list[Candidate] = []
    seen: set[nn.Parameter] = set()
    modules = dict(model.named_modules())
    for path, module in modules.items():
        parent, _, leaf = path.removesuffix("._orig_mod").rpartition(".")
        for candidate in _of_module(plain(path), leaf, module, modules.get(parent, model)):
            parameters = {view.parameter for view in candidate.views}
            if not parameters & seen:
                found.append(candidate)
            seen |= parameters
    return found


def weight_layers(model: nn.Module) -> list[nn.Module]:
    """List the Linear and convolution layers of a model, those of any library that look the same among them.

    Args:
        model: Any module.
    """
    return [module for module in model.modules() if _is_layer(module)]


def plain(name: str) -> str:
    """Return a name without the prefix that `torch.compile` gives.

    Args:
        name: Name of a module or parameter.
    """
    return ".".join(part for part in name.split(".") if part != "_orig_mod")


def _of_module(path: str, leaf: str, module: nn.Module, parent: nn.Module) -> Iterator[Candidate]:
    prefix = f"{path}." if path else ""
    if isinstance(module, nn.MultiheadAttention):
        yield from _of_multihead_attention(prefix, module)
        return
    parametrization = _parametrization(module, "weight") if _is_layer(module) else ""
    if not _is_layer(module) or not (parametrization or _has(module, "weight")):
        return
    kind = "conv" if isinstance(module, (*_CONV, *_TRANSPOSED)) else "linear"
    layout = "transposed_conv" if isinstance(module, _TRANSPOSED) else "in_out" if _is_conv1d(module) else "out_in"
    weight = _stand_in(module, _stored_shape(module), "weight") if parametrization else module.weight
    whole = WeightView(f"{prefix}weight", weight, getattr(module, "groups", 1), layout)
    obstacle = _obstacle(whole)
    siblings = [name for name, child in parent._modules.items() if _is_layer(getattr(child, "_orig_mod", child))]
    parts = parts_of(leaf, siblings, parent, whole.shape) if whole.groups == 1 else []
    if isinstance(parts, str):
        yield Candidate(whole.name, kind, [whole], obstacle or parts, parametrization, attention=True)
        return
    views = _split(whole, parts) or [replace(whole, role=role_of(leaf, siblings))]
    yield Candidate(whole.name, kind, views, obstacle, parametrization)


def _is_conv1d(module: nn.Module) -> bool:
    """Tell Hugging Face's Conv1D, a Linear whose weight is stored `(in, out)`."""
    return class_name(module) == "Conv1D" and hasattr(module, "nf")


def _is_layer(module: nn.Module) -> bool:
    return isinstance(module, (nn.Linear, *_CONV, *_TRANSPOSED)) or _is_conv1d(module)


def _of_multihead_attention(prefix: str, module: nn.MultiheadAttention) -> Iterator[Candidate]:
    width = module.embed_dim
    packed = module.kdim == width and module.vdim == width
    shapes = {"q": (width, width), "k": (width, module.kdim), "v": (width, module.vdim)}
    stored = {"in_proj_weight": (3 * width, width)} if packed else {f"{r}_proj_weight": shapes[r] for r in shapes}
    for name, shape in stored.items():
        parametrization = _parametrization(module, name)
        if not (parametrization or _has(module, name)):
            continue
        weight = _stand_in(module, shape, name) if parametrization else getattr(module, name)
        whole = WeightView(prefix + name, weight, role="" if packed else name[0])
        parts = [(role, index * width, (index + 1) * width) for index, role in enumerate("qkv")]
        views = _split(whole, parts) if packed else [whole]
        yield Candidate(whole.name, "linear", views, _obstacle(whole), parametrization)


def _split(whole: WeightView, parts: list[tuple[str, int, int]]) -> list[WeightView]:
    return [replace(whole, name=f"{whole.name}[{role}]", rows=(first, last), role=role) for role, first, last in parts]


def _obstacle(view: WeightView) -> str:
    if not view.parameter.is_floating_point():  # before frozen: a quantised weight is always frozen too
        return f"quantised or complex ({view.parameter.dtype})"
    if not view.parameter.requires_grad:
        return "frozen (requires_grad=False)"
    if view.parameter.numel() == 0:
        return "empty"
    if view.groups > 1 and view.shape[1] == 1:
        return "depthwise convolution: single columns, no matrices"
    return ""


def _has(module: nn.Module, name: str) -> bool:
    return name in dict(module.named_parameters(recurse=False, remove_duplicate=False))


def _parametrization(module: nn.Module, name: str) -> str:
    """Return what computes a weight, parametrizations of the new kind or hooks of the old one; empty if nothing."""
    if parametrize.is_parametrized(module, name):
        return ", ".join(type(part).__name__.lstrip("_") for part in module.parametrizations[name])
    if _has(module, f"{name}_g") and _has(module, f"{name}_v"):
        return "weight_norm"
    if _has(module, f"{name}_orig"):
        return "pruning" if hasattr(module, f"{name}_mask") else "spectral_norm"
    return ""


def _stand_in(module: nn.Module, shape: tuple[int, ...], name: str) -> nn.Parameter:
    """Return a parameter of the shape of a computed weight, without computing it: that may change buffers."""
    if parametrize.is_parametrized(module, name):
        sources = list(module.parametrizations[name].parameters())
    else:
        own = module.named_parameters(recurse=False)
        sources = [parameter for key, parameter in own if key.startswith(f"{name}_")]
    trained = any(source.requires_grad for source in sources)
    return nn.Parameter(torch.empty(shape, device="meta"), requires_grad=trained)


def _stored_shape(module: nn.Module) -> tuple[int, ...]:
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
_FUSED = {"qkv", "qkv_proj", "to_qkv", "c_attn", "Wqkv", "in_proj"}
_INTERLEAVED = {"query_key_value"}  # GPT-NeoX, BLOOM, Falcon: head by head, each in an order of its own
# CodeGen, DeBERTa and MiniMax give an interleaved projection a name that elsewhere means three blocks
_INTERLEAVED_PARENTS = {"CodeGenAttention", "DisentangledSelfAttention", "MiniMaxLightningAttention"}
# LeViT, TinyViT and EfficientFormer; bottleneck and halo attention; lambda layers: parts of different widths
_UNEVEN = (("key_dim", "val_dim"), ("dim_head_qk", "dim_head_v"), ("dim_qk", "dim_v"))

_HEADS = ("num_heads", "num_attention_heads", "n_head", "n_heads", "heads")
_KEY_VALUE_HEADS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "kv_heads")

Parts = list[tuple[str, int, int]]  # role, first output, last output + 1


def is_causal_language_model(model: nn.Module) -> bool:
    """Return whether a model predicts each token from those before it.

    That is: a Linear layer has the shape of an embedding, `(vocabulary, width)`, tied to it or not, and some module is
    causal, by an attribute `is_causal` (most of transformers, and `GPT`) or by "Causal" in the name of its class
    (nanoGPT's `CausalSelfAttention`), and none has `is_causal=False`, as attention in an encoder has.

    Args:
        model: Any module, compiled or not.
    """
    modules = list(model.modules())
    embeddings = {(m.num_embeddings, m.embedding_dim) for m in modules if isinstance(m, nn.Embedding)}
    outputs = {(m.out_features, m.in_features) for m in modules if isinstance(m, nn.Linear)}
    causal = [getattr(m, "is_causal", "Causal" in class_name(m) or None) for m in modules]
    said = any(c is True for c in causal) and not any(c is False for c in causal)
    return said and not embeddings.isdisjoint(outputs)


def role_of(leaf: str, siblings: Collection[str]) -> str:
    """Return the role of an unfused layer.

    Args:
        leaf: Its name within its parent.
        siblings: Names of all layers of that parent.

    Returns:
        `q`, `k`, `v`, or empty. A query is one only beside a key, and the other way round.
    """
    names = set(siblings)
    has_query, has_key = names & _QUERY, names & (_KEY | _KEY_VALUE | {"c_attn"})
    if leaf in _QUERY and has_key:
        return "q"
    if leaf in _KEY and has_query:
        return "k"
    return "v" if leaf in _VALUE and has_query and has_key else ""


def parts_of(leaf: str, siblings: Collection[str], parent: nn.Module, shape: tuple[int, ...]) -> Parts | str:
    """Split the outputs of a fused projection.

    Args:
        leaf: Name of the layer within its parent.
        siblings: Names of all layers of that parent.
        parent: The parent.
        shape: Shape `(out, in, *kernel)` of the weight.

    Returns:
        The parts; none if the layer is not fused; or why its parts cannot be told.
    """
    out, inputs = shape[:2]
    key_value = (leaf in _KEY_VALUE and set(siblings) & _QUERY) or (leaf == "c_attn" and "q_attn" in siblings)
    fused = leaf in _FUSED or leaf in _INTERLEAVED
    if leaf == "in_proj":  # state-space and gated-convolution layers have one too
        fused = out == 3 * inputs and any(hasattr(parent, name) for name in _HEADS)
    if not (key_value or fused):
        return []
    if leaf in _INTERLEAVED or _is_interleaved(parent):
        return "fused query-key-value in an interleaved order that is not known here"
    if any(hasattr(parent, key) and hasattr(parent, value) for key, value in _UNEVEN):
        return "fused query-key-value whose keys and values have widths of their own"
    return _halves(out) if key_value else _thirds(out, inputs, parent)


def _is_interleaved(parent: nn.Module) -> bool:
    if class_name(parent) in _INTERLEAVED_PARENTS:
        return True
    # MaxViT and CoAtNet; GPT-BigCode
    return getattr(parent, "head_first", False) is True or getattr(parent, "multi_query", True) is False


def _halves(out: int) -> Parts | str:
    if out % 2:
        return f"fused key-value of width {out} that is no multiple of 2"
    return [("k", 0, out // 2), ("v", out // 2, out)]


def _thirds(out: int, inputs: int, parent: nn.Module) -> Parts | str:
    """Split into three blocks, smaller ones for keys and values if the parent announces fewer heads of them."""
    heads, key_value_heads = _number(parent, _HEADS), _number(parent, _KEY_VALUE_HEADS)
    if heads and key_value_heads and heads != key_value_heads:  # grouped-query attention
        width, rest = divmod(out, heads + 2 * key_value_heads)
        query, key = heads * width, key_value_heads * width
        if rest:
            return f"fused query-key-value of width {out} that {heads} + 2·{key_value_heads} heads do not divide"
        return [("q", 0, query), ("k", query, query + key), ("v", query + key, out)]
    if out % 3:
        return f"fused query-key-value of width {out} that is no multiple of 3"
    if out != 3 * inputs and (heads is None or out % (3 * heads)):
        return f"fused query-key-value of width {out}: neither 3·{inputs} nor a multiple of three times its heads"
    return [("q", 0, out // 3), ("k", out // 3, 2 * out // 3), ("v", 2 * out // 3, out)]


def _number(parent: nn.Module, names: Collection[str]) -> int | None:
    """Look a number up in a module, or else in its `config`."""
    for place in (parent, getattr(parent, "config", None)):
        for name in names:
            value: Any = getattr(place, name, None)
            if isinstance(value, int) and value > 0:
                return value
    return None


def class_name(module: nn.Module) -> str:
    """Return the name of a module's class without what torch puts before it where it derives a class of its own.

    Args:
        module: Any module; parametrizations and FSDP2 change the class of those that they treat.
    """
    return type(module).__name__.removeprefix("FSDP").removeprefix("Parametrized")
