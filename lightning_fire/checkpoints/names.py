"""Which stored tensors are weights of layers, by name and shape."""

import re
from collections.abc import Callable

from lightning_fire.checkpoints.stored import FLOATING, Stored
from lightning_fire.where.layers import plain

EMBEDDING = "embedding"
SINGLE_COLUMNS = "depthwise convolution, or one input channel: single columns"
UNLESS_NAMED = (EMBEDDING, SINGLE_COLUMNS)  # reasons that hold unless the name of the layer is spelt out

_WEIGHTS = {"weight", "in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"}
_EMBEDDING = re.compile(r"embed(?!_out$)|(^|_)(wte|wpe|emb|tok|token_type|position\w*|relative)(_|$)")
_TOKEN = re.compile(r"(^|_)tokens?$")
_NORM = re.compile(r"norm(?!al)|^(ln|bn)(_|\d|$)")
_TRANSPOSED = re.compile(r"transpose|deconv|upconv")
_PARAMETRISED = re.compile(r"\bparametrizations\.|\bweight_[guv]$|\bweight_orig$")


def path_of(name: str) -> tuple[str, str, str]:
    """Split a name into the path of the parent layer, the layer and the tensor.

    Example:
        >>> path_of("h.0.attn.c_attn.weight")
        ('h.0.attn', 'c_attn', 'weight')
    """
    *parents, layer, leaf = ["", *plain(name).split(".")]
    return ".".join(parents).strip("."), layer, leaf


def why_not(stored: Stored) -> str:
    """Return why a tensor is not the weight matrix of a layer, the first reason in the order of `_REASONS`.

    Example:
        >>> why_not(Stored("wte.weight", (50257, 768), "F32"))
        'embedding'
    """
    if stored.reason:
        return stored.reason
    reason = next((reason for reason, holds in _REASONS if holds(stored)), "")
    return f"{reason} ({stored.dtype})" if reason == _QUANTISED else reason


def _is_embedding(stored: Stored) -> bool:
    """Return whether the name of the layer or its parent is that of an embedding; one of patches is a convolution."""
    if len(stored.shape) > 2:
        return False
    for name in stored.names:
        parents, layer, _ = path_of(name)
        if layer == "shared" or any(_EMBEDDING.search(part) for part in (layer, parents.rpartition(".")[2])):
            return True
    return False


def _leaf(stored: Stored) -> str:
    return path_of(stored.name)[2]


def _layer(stored: Stored) -> str:
    return path_of(stored.name)[1]


_QUANTISED = "quantised or complex"
_REASONS: tuple[tuple[str, Callable[[Stored], object]], ...] = (
    ("not a matrix", lambda stored: len(stored.shape) < 2),
    ("part of a parametrised weight", lambda stored: _PARAMETRISED.search(stored.name)),
    ("token or position embedding", lambda stored: _TOKEN.search(_leaf(stored)) or _EMBEDDING.search(_leaf(stored))),
    ("not named as the weight of a layer", lambda stored: _leaf(stored) not in _WEIGHTS),
    (_QUANTISED, lambda stored: stored.dtype not in FLOATING),
    ("empty", lambda stored: 0 in stored.shape),
    ("normalisation", lambda stored: _NORM.search(_layer(stored))),
    (
        "stack of expert matrices",
        lambda stored: len(stored.shape) == 3 and ("expert" in stored.name or "moe" in stored.name),
    ),
    (
        "transposed convolution, which may be grouped",
        lambda stored: len(stored.shape) > 2 and _TRANSPOSED.search(stored.name.lower()),
    ),
    (SINGLE_COLUMNS, lambda stored: len(stored.shape) > 2 and stored.shape[1] == 1),
    (EMBEDDING, _is_embedding),
)
