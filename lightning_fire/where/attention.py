"""Which layers are query, key and value projections, told by their names and by what their parent says of its heads."""

from collections.abc import Collection
from typing import Any

from torch import nn

_QUERY = {"q", "q_proj", "query", "query_proj", "to_q", "q_lin", "wq", "q_attn"}
_KEY = {"k", "k_proj", "key", "key_proj", "to_k", "k_lin", "wk"}
_VALUE = {"v", "v_proj", "value", "value_proj", "to_v", "v_lin", "wv"}
_KEY_VALUE = {"kv", "kv_proj", "to_kv", "Wkv"}
_FUSED = {"qkv", "qkv_proj", "to_qkv", "c_attn", "Wqkv", "in_proj"}
_INTERLEAVED = {"query_key_value"}  # GPT-NeoX, BLOOM, Falcon: head by head, each in an order of its own

_HEADS = ("num_heads", "num_attention_heads", "n_head", "n_heads", "heads")
_KEY_VALUE_HEADS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "kv_heads")

Parts = list[tuple[str, int, int]]  # role, first output, last output + 1


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


def parts_of(leaf: str, siblings: Collection[str], parent: nn.Module, out: int) -> Parts | str:
    """Split the outputs of a fused projection.

    Args:
        leaf: Name of the layer within its parent.
        siblings: Names of all layers of that parent.
        parent: The parent.
        out: Number of outputs of the layer.

    Returns:
        The parts; none if the layer is not fused; or why its parts cannot be told.
    """
    if leaf in _INTERLEAVED:
        return "fused query-key-value in an interleaved order that is not known here"
    heads, key_value_heads = _number(parent, _HEADS), _number(parent, _KEY_VALUE_HEADS)
    if leaf in _KEY_VALUE or (leaf == "c_attn" and "q_attn" in siblings):
        return [("k", 0, out // 2), ("v", out // 2, out)] if out % 2 == 0 else "fused key-value with an odd width"
    if leaf not in _FUSED or (leaf == "in_proj" and heads is None):
        return []
    if heads and key_value_heads and heads != key_value_heads:  # grouped-query attention
        width, rest = divmod(out, heads + 2 * key_value_heads)
        query, key = heads * width, key_value_heads * width
        if rest:
            return f"fused query-key-value of width {out} that {heads} + 2·{key_value_heads} heads do not divide"
        return [("q", 0, query), ("k", query, query + key), ("v", query + key, out)]
    if out % 3:
        return f"fused query-key-value of width {out} that is no multiple of 3"
    return [("q", 0, out // 3), ("k", out // 3, 2 * out // 3), ("v", 2 * out // 3, out)]


def _number(parent: nn.Module, names: Collection[str]) -> int | None:
    """Look a number up in a module, or else in its `config`."""
    for place in (parent, getattr(parent, "config", None)):
        for name in names:
            value: Any = getattr(place, name, None)
            if isinstance(value, int) and value > 0:
                return value
    return None
