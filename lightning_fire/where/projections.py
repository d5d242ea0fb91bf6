"""Projections of attention and gated layers: which rows of a fused weight hold queries, keys and values.

An order of rows cannot be read from names and widths, so it is trusted only where the code that uses it is known: the
`forward` of the module around it must be that of one of these libraries.
"""

import re
from collections.abc import Callable, Collection, Mapping

from torch import nn

Parts = tuple[Mapping[str, int], int]
"""The number of outputs of each part, in their order, and how often that order repeats."""

LIBRARIES = {
    "timm", "torchvision", "transformers", "diffusers", "vit_pytorch", "litgpt", "ultralytics", "lightning_fire",
    "torch_geometric", "torchrl", "segmentation_models_pytorch",
}  # fmt: skip
_WHOLE: Parts = {}, 1
_QUERY = {"q", "q_proj", "query", "to_q", "q_lin", "wq", "q_attn", "query_proj"}
_KEY = {"k", "k_proj", "key", "to_k", "k_lin", "wk", "key_proj"}
_VALUE = {"v", "v_proj", "value", "to_v", "v_lin", "wv", "value_proj"}
_KEY_VALUE = {"kv", "kv_proj", "to_kv"}
_THREE = {
    "qkv", "qkv_proj", "to_qkv", "Wqkv", "wqkv", "c_attn", "W_pack", "in_proj_qkv", "qkv_linear", "att_proj",
}  # fmt: skip
_LATENT_A, _LATENT_B = {"kv_a_proj_with_mqa", "wkv_a"}, {"kv_b_proj", "wkv_b"}
_FUSED = {"in_proj", "query_key_value", "gate_up_proj"} | _KEY_VALUE | _THREE | _LATENT_A | _LATENT_B
_LIKE_FUSED = re.compile(
    r"(quer(y|ies)|keys?|values?)_?(quer(y|ies)|keys?|values?)|q_?k(_|v|$)|k_?v(_|s?$)|k_?q_?v|v_?q_?k|v_?k_?q|q_?v_?k"
    r"|gate_up|up_gate",
    re.IGNORECASE,
)
# of these, rows are mixed in other ways than names and numbers of heads say
_MIXED = {
    "CodeGenAttention", "DisentangledSelfAttention", "MiniMaxLightningAttention", "SelfBlock", "LiteMla", "LiteMLA",
    "InternLM2Attention",
}  # fmt: skip
_HEADS = "num_heads", "num_attention_heads", "n_head", "n_heads", "heads"
_KEY_HEADS = (
    "num_key_value_heads", "num_kv_heads", "n_query_groups", "kv_heads", "kv_n_heads", "n_kv_head", "n_kv_heads",
)  # fmt: skip
_UNEVEN = (
    "val_dim", "d_k", "dim_head_qk", "dim_qk", "qk_dim", "qk_head_dim", "key_head_dim", "qk_channels", "v_channels",
)  # fmt: skip


class UnknownRows(str):
    """Reason to leave out a fused projection of queries, keys and values whose order of rows is not known."""


def unknown_rows(leaf: str) -> UnknownRows:
    """Return the reason to leave out a fused projection, with the argument that takes it."""
    example = "{'gate': …, 'up': …}" if "gate" in leaf else "{'q': …, 'k': …, 'v': …}"
    return UnknownRows(f"fused, rows in an order that is not known: Weights(split={{'{leaf}': {example}}}) gives it")


def is_projection(leaf: str) -> bool:
    """Return whether a name is that of a projection of attention or of a gated layer, fused or not."""
    return leaf in _QUERY | _KEY | _VALUE or is_fused(leaf)


def is_fused(leaf: str) -> bool:
    """Return whether a name is, or looks like, that of a fused projection."""
    return leaf in _FUSED or bool(_LIKE_FUSED.search(leaf))


def role_of(leaf: str, siblings: Collection[str]) -> str:
    """Return `q`, `k`, `v` or nothing for an unfused layer; a query requires a key beside it, and vice versa."""
    names = set(siblings)
    if not (names & _QUERY and names & (_KEY | _KEY_VALUE | {"c_attn"})):
        return ""
    return "q" if leaf in _QUERY else "k" if leaf in _KEY else "v" if leaf in _VALUE else ""


def parts_of(leaf: str, siblings: Collection[str], parent: nn.Module, shape: tuple[int, ...]) -> Parts | UnknownRows:
    """Split the outputs of a projection into its parts; none for one matrix.

    Args:
        leaf: Name of the projection in the module that uses it.
        siblings: Names of all layers of that module.
        parent: That module, whose class and numbers of heads tell the order of the rows.
        shape: Shape of the weight, `(out, in, *kernel)`.
    """
    names, (out, inputs) = {kind.__name__ for kind in type(parent).__mro__}, shape[:2]
    if leaf in _QUERY | _KEY | _VALUE or (leaf == "in_proj" and names.isdisjoint(_MIXED)):
        return _WHOLE
    library = getattr(type(parent).forward, "__module__", "").partition(".")[0]
    if library not in LIBRARIES and not (leaf == "c_attn" and "CausalSelfAttention" in names):  # nanoGPT, minGPT
        return unknown_rows(leaf)
    pair = (leaf in _KEY_VALUE and set(siblings) & _QUERY) or (leaf == "c_attn" and "q_attn" in siblings)
    # head_first: MaxViT and CoAtNet; multi_query: GPT-BigCode
    mixed = names & _MIXED or getattr(parent, "head_first", False) is True
    mixed = mixed or getattr(parent, "multi_query", None) is False
    parts: Parts | None = None
    if leaf in _LATENT_A | _LATENT_B:
        parts = _latent(leaf, parent)
    elif by_class := next((_BY_CLASS[name] for name in names if name in _BY_CLASS), None):
        parts = by_class(out, parent)
    elif not mixed and (leaf in _THREE or pair):
        declared = _number(parent, ("key_dim",))
        parts = _by_key_dim(bool(pair), parent) if declared else _in_blocks(out, inputs, bool(pair), parent)
    elif leaf == "gate_up_proj" and library == "transformers":
        parts = {"gate": out // 2, "up": out // 2}, 1
    known = parts and all(parts[0].values()) and sum(parts[0].values()) * parts[1] == out
    return parts if parts and known else unknown_rows(leaf)


def _in_blocks(out: int, inputs: int, pair: bool, parent: nn.Module) -> Parts | None:
    """Queries, keys and values one after the other; fewer key heads if the parent declares them."""
    if any(hasattr(parent, name) for name in _UNEVEN):
        return None
    heads, keys = _number(parent, _HEADS), _number(parent, _KEY_HEADS)
    keys = 1 if getattr(parent, "multi_query", False) is True else keys
    widths = {inputs, *(getattr(layer, "in_features", getattr(layer, "in_channels", 0)) for layer in parent.modules())}
    if pair:
        return ({"k": out // 2, "v": out // 2}, 1) if out // 2 in widths or keys else None
    if heads and keys and keys != heads:
        size, rest = divmod(out, heads + 2 * keys)
        return None if rest else ({"q": heads * size, "k": keys * size, "v": keys * size}, 1)
    return (dict.fromkeys("qkv", out // 3), 1) if out // 3 in widths else None


def _by_key_dim(pair: bool, parent: nn.Module) -> Parts | None:
    """LeViT, TinyViT, EfficientFormer and YOLO: head by head, each with widths of its own."""
    key, value = _number(parent, ("key_dim",)) or 0, _number(parent, ("val_dim", "head_dim")) or 0
    widths = {"k": key, "v": value} if pair else {"q": key, "k": key, "v": value}
    return widths, _number(parent, ("num_heads",)) or 1


def _by_head(out: int, parent: nn.Module) -> Parts | None:
    heads = _number(parent, _HEADS)
    return (dict.fromkeys("qkv", out // 3 // heads), heads) if heads else None


def _falcon(out: int, parent: nn.Module) -> Parts | None:
    heads, grouped = _number(parent, _HEADS) or 1, getattr(parent, "new_decoder_architecture", False)
    shared = 1 if getattr(parent, "multi_query", False) else heads
    blocks = (_number(parent, ("num_kv_heads",)) or 1) if grouped else shared
    size = out // (heads + 2 * blocks)
    return {"q": heads // blocks * size, "k": size, "v": size}, blocks


def _latent(leaf: str, parent: nn.Module) -> Parts | None:
    """Keys and values of DeepSeek's attention, which are compressed by `kv_a` and expanded head by head by `kv_b`."""
    first = leaf in _LATENT_A
    names = {"kv": "kv_lora_rank", "k": "qk_rope_head_dim"} if first else {"k": "qk_nope_head_dim", "v": "v_head_dim"}
    heads = 1 if first else _number(parent, _HEADS) or 1
    return {part: _number(parent, (name,)) or 0 for part, name in names.items()}, heads


_BY_CLASS: dict[str, Callable[[int, nn.Module], Parts | None]] = {
    **dict.fromkeys(["GPTNeoXAttention", "GPTNeoXJapaneseAttention", "BloomAttention"], _by_head),
    **dict.fromkeys(["PersimmonAttention", "AAttn"], _by_head),
    "FalconAttention": _falcon,
}


def _number(parent: nn.Module, names: Collection[str]) -> int | None:
    """Look up a positive integer in a module, then in its `config`."""
    owners = [parent, getattr(parent, "config", None)]
    values = [getattr(owner, name, None) for owner in owners for name in names]
    return next((value for value in values if type(value) is int and value > 0), None)
