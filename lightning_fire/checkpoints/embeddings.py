"""Embedding tables in a file, recognized by names, otherwise by shapes."""

import re
from collections import Counter
from collections.abc import Sequence

from lightning_fire.checkpoints.stored import Stored

_NAMED = re.compile(r"embed(?!_out$)|(^|_)(wte|wpe|emb|tok|token_type|position\w*|relative)(_|$)")
# layers with exactly such a name are tables; as parts of longer names they are not: `pos_proj`, `word_head`
_WHOLE = re.compile(
    r"(pos(ition(s|al)?)?|pe|lut|look_?up|vocab(ulary)?|words?|tokens?|(word|token|char|node)?_?(vectors?|table)|shared"
    r"|code_?book|chars?|seg(ments?)?|(item|user|entity|relation)_?(factors?|table|vectors?)|items|users|entities"
    r"|relations|speakers?|types?|wpe|wte)"
)
_TOKENS = re.compile(
    r"(wte|shared|emb|lut|look_?up|vocab(ulary)?|words?|(word|token)_?(vectors?|table)|tok(en)?s?|tok(en)?_embed\w*"
    r"|embed_(in|tokens)|(word_)?embeddings?)"
)
# usual names of layers that are not tables, including output layers without a bias
_LINEAR = re.compile(
    r"(^|_)(fc\d*|lin(ear)?\d*|dense\d*|proj(ection|ector)?|head|out(put)?s?|logits?|classifier|pred(ictor|ictions?)?"
    r"|decoder|score|final|last|gate|router|policy|value|actor|critic|mlp|ffn?|w[a-z]?\d?|W?[qkvo]+|attn|query|key|\d+)(_|$)"
)
_PROJECTION = re.compile(r"(^|_)(proj(ect(ion)?)?|mapping|linear|dense|fc\d*)(_|$)")  # a Linear on or in an embedding
_FEWEST = 16  # minimum rows of a table; output layers with fewer are frequent


def is_named_embedding(layer: str, parent: str) -> bool:
    """Return whether the names of a layer and of its parent are those of an embedding."""
    named = _WHOLE.fullmatch(layer) or _NAMED.search(layer) or _NAMED.search(parent)
    return bool(named) and not _PROJECTION.search(layer)


def is_of_tokens(layer: str) -> bool:
    """Return whether the name of an embedding is that of tokens, not of positions etc."""
    return bool(_TOKENS.fullmatch(layer))


def embeddings_by_shape(tensors: Sequence[Stored]) -> set[str]:
    """Return the names of weights that are embeddings according to names and shapes.

    A table of shape `(rows, width)` has at least 16 rows and no bias; no other tensor has its number of rows, except an
    output layer of the same shape; other weights have its width. An output layer without a bias also fits: therefore
    the last matrix in the given order, if not tied, and layers with a usual name of Linear layers, are not tables.

        >>> shapes = {"net.things.weight": (99, 8), "net.fc.weight": (16, 8), "net.end.weight": (3, 16)}
        >>> embeddings_by_shape([Stored(name, shape, "F32") for name, shape in shapes.items()])
        {'net.things.weight'}
    """
    names = {name for stored in tensors for name in stored.names}
    matrices = [stored for stored in tensors if len(stored.shape) == 2]
    same = Counter(stored.shape for stored in matrices)
    sizes = Counter(size for stored in tensors if not stored.name.endswith("bias") for size in stored.shape)
    found = set()
    for stored in matrices:
        rows, width = stored.shape
        linear = _LINEAR.search(stored.name.removesuffix(".weight").rpartition(".")[2]) or stored is matrices[-1]
        has_bias = all(f"{name.removesuffix('weight')}bias" in names for name in stored.names)
        if rows < _FEWEST or rows == width or has_bias or not stored.name.endswith(".weight"):
            continue
        alone = sizes[rows] == same[stored.shape] <= 2 and sizes[width] > same[stored.shape]
        if alone and (stored.aliases or not linear):
            found.add(stored.name)
    return found
