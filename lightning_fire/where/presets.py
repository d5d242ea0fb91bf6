"""Presets, and which one a model calls for."""

import math
from collections.abc import Callable, Sequence
from typing import Literal

from torch import nn

from lightning_fire.where.found import Found
from lightning_fire.where.projections import UnknownRows
from lightning_fire.where.weight_view import WeightView

Preset = Literal["auto", "cnn", "vit", "gpt", "dqn", "sac"]
PRESETS: dict[str, Callable[[WeightView], bool]] = {
    "cnn": lambda view: True,
    "vit": lambda view: view.role in ("q", "k"),
    "gpt": lambda view: len(view.shape) == 2,
    "dqn": lambda view: len(view.shape) > 2,
    "sac": lambda view: len(view.shape) == 2,
}


def is_vector(view: WeightView) -> bool:
    """Return whether a weight has, for each group, one row or one column in total."""
    rows, columns, *kernel = view.shape
    return min(rows // view.groups, columns) == 1 and math.prod(kernel) == 1


def preset_for(model: nn.Module, matrices: Sequence[Found]) -> str:
    """Return the preset that `auto` means for a model with these weight matrices, selected or not."""
    attention = any(_is_attention(found) for found in matrices)
    if attention and is_causal_language_model(model):
        return "gpt"
    return "vit" if mostly_attention(matrices) else "cnn"


def mostly_attention(matrices: Sequence[Found]) -> bool:
    """Return whether a network is a transformer, not a network with some attention.

    True if queries and keys are more than a quarter of all matrices (a third in a transformer block), and the last
    matrix is not a convolution, as in networks that output images. Matrices with up to three inputs (colors,
    coordinates) are not counted.
    """
    matrices = [found for found in matrices if found.whole.shape[1] > 3]
    unknown = sum(isinstance(found.reason, UnknownRows) for found in matrices)  # counted as three
    number = sum(len(found.views) if _is_attention(found) else 1 for found in matrices) + 2 * unknown
    queries_and_keys = sum(view.role in ("q", "k") for found in matrices for view in found.views) + 2 * unknown
    return 4 * queries_and_keys > number and len(matrices[-1].whole.shape) == 2


def is_causal_language_model(model: nn.Module) -> bool:
    """Return whether a model predicts each token from those before it.

    True if (1) a Linear layer has the shape of an embedding, `(vocabulary, width)`, tied to it or not; (2) some module
    is causal, by an attribute `is_causal` (most models of transformers, and `GPT`) or by "Causal" in the name of its
    class (nanoGPT's `CausalSelfAttention`); and (3) no module has `is_causal=False`, as attention in an encoder does.
    """
    modules = list(model.modules())
    embeddings = {(m.num_embeddings, m.embedding_dim) for m in modules if isinstance(m, nn.Embedding)}
    outputs = {(m.out_features, m.in_features) for m in modules if isinstance(m, nn.Linear)}
    causal = [getattr(m, "is_causal", "Causal" in type(m).__name__ or None) for m in modules]
    said = any(c is True for c in causal) and not any(c is False for c in causal)
    return said and not embeddings.isdisjoint(outputs)


def _is_attention(found: Found) -> bool:
    return isinstance(found.reason, UnknownRows) or any(view.role in ("q", "k", "v", "kv") for view in found.views)
