"""Query, key and value projections, told by names and by what their parent says of its heads; language models."""

from collections.abc import Collection
from typing import Any

from torch import nn

from lightning_fire.where.class_name import class_name

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
