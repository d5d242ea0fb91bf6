"""Fused projections: rows of the weight for queries, keys and values, or for gate and up projections."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from itertools import accumulate
from typing import Any

from torch import nn

from lightning_fire.checkpoints.candidate import Candidate
from lightning_fire.where.weight_view import WeightView

Parts = tuple[Mapping[str, int], int]
"""The number of outputs of each part, in their order, and how often that order repeats."""

NOT_FUSED: Parts = {}, 1
_QUERY = {"q", "q_proj", "query", "query_proj", "to_q", "q_lin", "wq", "q_attn"}
_KEY = {"k", "k_proj", "key", "key_proj", "to_k", "k_lin", "wk"}
_VALUE = {"v", "v_proj", "value", "value_proj", "to_v", "v_lin", "wv"}
_KEY_VALUE = {"kv", "kv_proj", "to_kv", "Wkv"}
_QUERY_KEY = {"qk", "qk_proj", "to_qk", "Wqk", "query_key"}
_FUSED = re.compile(
    r"c_attn|W_pack|((to|in|c|self|attn|img|txt|added)_)*w?_?(qkv|query_key_value)(_(proj|projection|linear|lin|attn))?",
    re.IGNORECASE,
)
_LIKE_FUSED = re.compile("qkv|qvk|kqv|kvq|vqk|vkq", re.IGNORECASE)
_LETTERS = {"query": "q", "queries": "q", "key": "k", "keys": "k", "value": "v", "values": "v"}
_PARTS_OF_LATENT = {"a", "b", "down", "up"}  # keys and values head by head, or compressed
_GATED = re.compile(r"gate_up(_proj)?|up_gate_proj")
INTERLEAVED = "fused query-key-value in an interleaved order"
_ORDERS = {  # by class, for projections whose name means three blocks in other classes
    **dict.fromkeys(["CodeGenAttention", "DisentangledSelfAttention", "MiniMaxLightningAttention"], INTERLEAVED),
    **dict.fromkeys(["SelfBlock", "LiteMla", "LiteMLA"], INTERLEAVED),  # of LightGlue, EfficientViT
    # query, key and value of each head side by side; AAttn is YOLO's area attention
    **dict.fromkeys(["GPTNeoXAttention", "GPTNeoXJapaneseAttention", "BloomAttention"], "by head"),
    **dict.fromkeys(["PersimmonAttention", "AAttn"], "by head"),
    # for each key head its queries, the key and the value
    **dict.fromkeys(["InternLM2Attention", "InternLM2FlashAttention2", "InternLM2SdpaAttention"], "by key head"),
}
# bottleneck and halo attention; lambda layers: parts of different widths
_UNEVEN = (("key_dim", "val_dim"), ("dim_head_qk", "dim_head_v"), ("dim_qk", "dim_v"))
_UNEVEN_IF_DIFFERENT = (
    ("d_k", "d_v"),
    ("key_dim", "value_dim"),
    ("qk_dim", "v_dim"),
    ("qk_head_dim", "v_head_dim"),
    ("head_dim_qk", "head_dim_v"),
    ("key_head_dim", "value_head_dim"),
    ("qk_channels", "v_channels"),
)

_HEADS = (
    *("num_heads", "num_attention_heads", "n_head", "n_heads", "heads", "nhead", "nheads", "num_query_heads"),
    *("num_heads_q", "num_q_heads", "n_q_heads", "n_heads_q", "num_attn_heads", "n_attn_heads"),
)
_KEY_HEADS = (
    *("num_key_value_heads", "num_kv_heads", "n_kv_heads", "kv_heads", "n_query_groups", "num_query_groups"),
    *("num_heads_kv", "kv_n_heads", "n_head_kv", "n_heads_kv", "n_kv_head", "num_kv_head", "nheads_kv", "nhead_kv"),
    *("kv_num_heads", "key_value_heads", "n_key_value_heads", "num_key_heads", "num_k_heads", "n_key_heads"),
    *("num_attention_heads_kv", "multi_query_group_num", "num_multi_query_groups"),
    *("num_multi_query_groups_per_partition",),
)  # fmt: skip
# the number of key heads, of queries per key head, or of something else, depending on the library
_PERHAPS_KEY_HEADS = re.compile(r"kv|key|group|quer|local_heads|n_rep")
_HEAD_SIZES = (
    *("head_dim", "head_size", "dim_head", "d_head", "attention_head_size", "attention_head_dim", "attn_head_dim"),
    *("dim_per_head", "head_width", "kv_channels", "hidden_size_per_attention_head"),
)
_VALUE_SIZES = ("val_dim", "head_dim")  # beside a `key_dim`
_CONFIGS = ("config", "cfg", "args", "params")


def role_of(leaf: str, siblings: Collection[str]) -> str:
    """Return `q`, `k`, `v` or nothing for an unfused layer. A query requires a key beside it, and vice versa."""
    names = set(siblings)
    if _in_a_pair(leaf, names) == "q":
        return "q"
    has_query, has_key = names & _QUERY, names & (_KEY | _KEY_VALUE | {"c_attn"})
    if leaf in _QUERY and has_key:
        return "q"
    if leaf in _KEY and has_query:
        return "k"
    return "v" if leaf in _VALUE and ((has_query and has_key) or names & _QUERY_KEY) else ""


def _is_like_fused(leaf: str) -> bool:
    """Return whether a name is that of queries and keys, and perhaps values, in any order: `kqv`, `keys_queries`."""
    return bool(_LIKE_FUSED.search(leaf)) or {"q", "k"} <= set(_letters(leaf)[0])


def _letters(name: str) -> tuple[str, tuple[str, ...]]:
    """Split a name into the letters of queries, keys and values, and its other words: `c_kv` into `kv` and `c`."""
    words = [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]
    found = [_LETTERS.get(word) or re.sub(".*[^qkv].*", "", word.removeprefix("w")) for word in words]
    return "".join(found), tuple(word for word, own in zip(words, found, strict=True) if not own and word != "w")


def _in_a_pair(leaf: str, names: Collection[str]) -> str:
    """Return the letters of one of a pair with equal other words, such as `q_net` and `kv_net`; empty for others."""
    letters, others = _letters(leaf)
    partners = {"q": ("kv", "vk"), "kv": ("q",), "vk": ("q",)}.get(letters, ())
    paired = any(_letters(name) in [(partner, others) for partner in partners] for name in names)
    return letters if paired and _PARTS_OF_LATENT.isdisjoint(others) else ""


def is_gated(leaf: str) -> bool:
    """Return whether a name is that of a fused gate and up projection."""
    return bool(_GATED.fullmatch(leaf))


def parts_of(leaf: str, siblings: Collection[str], parent: object, shape: tuple[int, ...]) -> Parts | str:
    """Split the outputs of a fused projection; return the parts, `NOT_FUSED`, or the reason why they are unknown.

    Parts are never guessed from the name alone: their widths must follow from the number of heads and from the head
    size, which the parent declares or the width confirms. For a file, `parent` is an object with the class name and
    attributes of the module. `siblings` are the names of the layers in the parent, its own included.
    """
    out, inputs = shape[:2]
    names, order = set(siblings), next((_ORDERS[kind] for kind in classes_of(parent) if kind in _ORDERS), "")
    if is_gated(leaf):
        return gate_and_up(out, parent, _widths_of_inputs(parent) | set(_numbers(parent, ("intermediate_size",))))
    if leaf in ("kv_a_proj_with_mqa", "wkv_a"):  # latent attention in transformers, in DeepSeek's own code
        return _latent(out, {"kv": "kv_lora_rank", "k": "qk_rope_head_dim"}, 1, parent)
    if leaf in ("kv_b_proj", "wkv_b"):
        return _latent(out, {"k": "qk_nope_head_dim", "v": "v_head_dim"}, _number(parent, _HEADS) or 0, parent)
    if leaf == "attn":  # litgpt until 0.5.4, group by group
        return _by_heads(out, parent, "by key head") if _number(parent, ("n_query_groups",)) else NOT_FUSED
    key, value = _number(parent, ("key_dim",)), _number(parent, ("val_dim",))
    usual = (leaf in _KEY_VALUE and names & _QUERY) or (leaf == "c_attn" and "q_attn" in names)
    letters = _in_a_pair(leaf, names).replace("q", "")
    key_value = usual or letters
    fused = bool(_FUSED.fullmatch(leaf))
    if leaf in ("in_proj", "att_proj"):  # state-space and gated-convolution layers have one too
        fused = out == 3 * inputs and any(hasattr(parent, name) for name in _HEADS)
    if not (key_value or fused):
        if set(_letters(leaf)[0]) == {"q", "k"} and out == inputs:  # one matrix for both: Reformer, LightGlue
            return NOT_FUSED
        if leaf in _QUERY_KEY and out == 2 * inputs and names & _VALUE:
            return {"q": inputs, "k": inputs}, 1
        if leaf in _QUERY_KEY:
            return f"fused query-key of width {out}, not 2·{inputs} beside a value"
        if leaf == "qkvs in a list" and key and value and out == 2 * key + value:  # EfficientViT, one for each head
            return {"q": key, "k": key, "v": value}, 1
        return f"fused query-key-value of an unknown kind ({leaf})" if _is_like_fused(leaf) else NOT_FUSED
    if leaf == "query_key_value" or order.startswith("by"):
        return _by_heads(out, parent, order)
    # MaxViT and CoAtNet; GPT-BigCode
    if order or getattr(parent, "head_first", False) is True or getattr(parent, "multi_query", True) is False:
        return INTERLEAVED
    heads, value = _number(parent, ("num_heads",)), _number(parent, _VALUE_SIZES)
    # LeViT, TinyViT, EfficientFormer and YOLO: head by head; other modules have a `head_dim` of the same size
    if heads and key and value and (key != value or hasattr(parent, "val_dim")):
        widths = {"k": key, "v": value} if key_value else {"q": key, "k": key, "v": value}
        if out == heads * sum(widths.values()):
            return widths, heads
    sizes = [(_number(parent, (first,)), _number(parent, (second,))) for first, second in _UNEVEN_IF_DIFFERENT]
    if any(first and second and first != second for first, second in sizes) or any(
        hasattr(parent, first) and hasattr(parent, second) for first, second in _UNEVEN
    ):
        return "fused query-key-value whose keys and values have widths of their own"
    if not key_value:
        return _three_blocks(out, inputs, parent)
    if out % 2:
        return f"fused key-value of width {out}, not a multiple of 2"
    if not usual and out // 2 not in _widths_of_inputs(parent) | {inputs}:
        return f"fused key-value of width {out}, of an unknown number of heads"
    return dict.fromkeys(letters or "kv", out // 2), 1


def gate_and_up(out: int, parent: object, widths: Collection[int]) -> Parts | str:
    """Split a projection that holds gate and up projections, if a neighbouring layer's width confirms it.

    The order follows from the attribute `is_concatenated` of the parent.
    """
    in_halves = getattr(parent, "is_concatenated", None)
    order = {True: "halves", False: "interleaved"}.get(in_halves, "") if isinstance(in_halves, bool) else ""
    order = order or "halves"
    if out % 2 or out // 2 not in widths or not order:
        return f"fused gate and up projection of width {out}, whose parts are not known"
    width = out // 2
    return ({"gate": width, "up": width}, 1) if order == "halves" else ({"gate": 1, "up": 1}, width)


def _latent(out: int, names: Mapping[str, str], blocks: int, parent: object) -> Parts | str:
    """Split a projection of latent attention (DeepSeek) into parts whose widths the parent declares, block by block."""
    widths = {role: _number(parent, (name,)) or 0 for role, name in names.items()}
    if not all(widths.values()) or out != blocks * sum(widths.values()):
        return "fused key-value whose parts are not known"
    return widths, blocks


def _by_heads(out: int, parent: object, order: str) -> Parts | str:
    """Split a projection that holds, for each key head, its queries, key and value in adjacent rows."""
    heads, size, blocks = _number(parent, _HEADS), _number(parent, _HEAD_SIZES), None
    if order == "by key head":
        blocks = _number(parent, _KEY_HEADS)
    elif order == "by head":
        blocks = heads
    elif "FalconAttention" in classes_of(parent):
        shared = 1 if getattr(parent, "multi_query", False) else heads
        grouped = getattr(parent, "new_decoder_architecture", False)
        blocks = _number(parent, ("num_kv_heads",)) if grouped else shared
    if not heads or not blocks or heads % blocks or out % (heads + 2 * blocks):
        return INTERLEAVED
    width = out // (heads + 2 * blocks)
    if size and size != width:
        return INTERLEAVED
    return {"q": width * heads // blocks, "k": width, "v": width}, blocks


def _three_blocks(out: int, inputs: int, parent: object) -> Parts | str:
    """Split into queries, keys and values, with fewer key and value heads if the parent declares them.

    With H query heads and K key heads of size D, a projection has (H + 2K)·D rows.
    """
    heads, size = _number(parent, _HEADS), _number(parent, _HEAD_SIZES)
    key_heads = set(_numbers(parent, _KEY_HEADS))
    if getattr(parent, "multi_query", False) is True:  # GPT-BigCode, MPT
        key_heads = {1}
    if heads is None:
        if out != 3 * inputs or key_heads:
            return f"fused query-key-value of width {out}, of an unknown number of heads"
        return dict.fromkeys("qkv", inputs), 1
    widths = _widths_of_inputs(parent) | {inputs}

    def fits(number: int) -> bool:
        width, rest = divmod(out, heads + 2 * number)
        confirmed = width == size if size else width * heads in widths
        return not rest and not heads % number and confirmed

    likely = key_heads or {heads, *_perhaps_key_heads(parent, heads)}
    found = [number for number in likely if fits(number)]
    if len(found) != 1:
        known = f"{heads} heads{f' of size {size}' if size else ''}"
        number = f", {' or '.join(map(str, sorted(key_heads)))} of keys" if key_heads else ""
        return (
            f"fused query-key-value of width {out}, which {known}{number} {'leave open' if found else 'do not explain'}"
        )
    width = out // (heads + 2 * found[0])
    return {"q": heads * width, "k": found[0] * width, "v": found[0] * width}, 1


def _widths_of_inputs(parent: object) -> set[int]:
    """Return the input dimensions of the layers in a module, one of which follows the attention."""
    modules = parent.modules() if isinstance(parent, nn.Module) else ()
    names = ("in_features", "in_channels", "nx")
    return {width for module in modules for name in names if type(width := getattr(module, name, None)) is int}


def _perhaps_key_heads(parent: object, heads: int) -> Iterator[int]:
    for owner in _owners(parent):
        settings = owner if isinstance(owner, Mapping) else getattr(owner, "__dict__", {})
        for name, value in settings.items():
            if type(value) is int and value > 0 and _PERHAPS_KEY_HEADS.search(str(name)):
                yield value
                if heads % value == 0:
                    yield heads // value


def _owners(parent: object) -> list[object]:
    return [parent, *(config for name in _CONFIGS if (config := getattr(parent, name, None)) is not None)]


def _numbers(parent: object, names: Collection[str]) -> list[int]:
    """Look up positive integers in a module, then in its `config`."""
    values = [
        owner.get(name) if isinstance(owner, Mapping) else getattr(owner, name, None)
        for owner in _owners(parent)
        for name in names
    ]
    return [value for value in values if type(value) is int and value > 0]


def _number(parent: object, names: Collection[str]) -> int | None:
    return next(iter(_numbers(parent, names)), None)


def candidate_in(parts: Parts | str, whole: WeightView, reason: str = "", role: str = "", **options: Any) -> Candidate:
    """Return a weight as a candidate: split into its parts, or whole with a role if unfused or unknown."""
    if isinstance(parts, str):
        return Candidate(whole.name, [whole], reason or parts, **{"attention": "gate" not in parts, **options})
    widths, blocks = parts
    named = zip(widths.items(), accumulate(widths.values()), strict=True)
    views = [
        replace(whole, name=f"{whole.name}[{part}]", rows=(end - width, end), blocks=blocks, role=part)
        for (part, width), end in named
    ]
    return Candidate(whole.name, views or [replace(whole, role=role)], reason, **options)


def classes_of(module: object) -> set[str]:
    """Return the names of a module's classes, base classes included: parametrizations and FSDP2 derive new ones."""
    return {kind.__name__ for kind in type(module).__mro__}
