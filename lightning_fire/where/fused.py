"""Fused projections of attention: which rows of the weight are queries, keys and values."""

from collections.abc import Collection
from dataclasses import replace
from typing import NamedTuple

from lightning_fire.where.weight_view import WeightView


class Part(NamedTuple):
    """A part of a fused weight: the first and the last + 1 of its outputs in each of some equal blocks."""

    role: str
    first: int
    last: int
    blocks: int = 1


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
    if classes_of(parent) & _BY_HEADS:
        blocks = heads
    elif "FalconAttention" in classes_of(parent):
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
    if classes_of(parent) & _INTERLEAVED_PARENTS:
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


def split(whole: WeightView, parts: list[Part]) -> list[WeightView]:
    """Return the parts of a fused weight."""
    named = [(f"{whole.name}[{part.role}]", part) for part in parts]
    return [replace(whole, name=n, rows=(p.first, p.last), blocks=p.blocks, role=p.role) for n, p in named]


def classes_of(module: object) -> set[str]:
    """Return the names of a module's classes: parametrizations and FSDP2 derive one of their own."""
    return {kind.__name__ for kind in type(module).__mro__}
