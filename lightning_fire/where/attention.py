"""Attention in a model: query, key and value projections, and whether the model is a transformer."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from torch import nn

from lightning_fire.where.candidate import Candidate, is_matrix
from lightning_fire.where.fused import NOT_FUSED, candidate_in, is_attention_name
from lightning_fire.where.low_rank import low_rank_factors
from lightning_fire.where.weight_layers import is_layer, weight_of, why_never
from lightning_fire.where.weight_view import WeightView


def user_of(path: str, modules: Mapping[str, nn.Module]) -> tuple[str, nn.Module]:
    """Return the name of a layer and the module that uses it; for `attn.qkv.conv`, `qkv` and the module `attn`.

    A module that wraps a single layer, with norms and activations, counts as that layer if it has a name of attention.
    """
    parent, _, leaf = path.removesuffix("._orig_mod").rpartition(".")
    wrapper, name = parent, leaf
    while wrapper and not is_attention_name(name):
        single, several = wraps_one_layer(modules[wrapper]), isinstance(modules[wrapper], nn.ModuleList)
        if not (single or several):
            break
        wrapper, _, name = wrapper.removesuffix("._orig_mod").rpartition(".")
        if is_attention_name(name):
            return f"{name} in a list" if several and not single else name, modules.get(wrapper, modules[""])
    return leaf, modules.get(parent, modules[""])


def wraps_one_layer(module: nn.Module) -> bool:
    """Return whether a module is a layer or contains exactly one, low-rank factors excluded."""
    layers = (part for name, part in module.named_modules() if is_layer(part) and not low_rank_factors({name: ()}))
    return len(list(islice(layers, 2))) == 1 and not isinstance(module, nn.MultiheadAttention)


def of_multihead_attention(prefix: str, module: nn.MultiheadAttention) -> Iterator[Candidate]:
    """Yield the weights of an attention module, with a prefix before their names."""
    width = module.embed_dim
    packed = module.kdim == width and module.vdim == width
    shapes = {"q_proj_weight": (width, width), "k_proj_weight": (width, module.kdim)}
    shapes["v_proj_weight"] = (width, module.vdim)
    for name, shape in {"in_proj_weight": (3 * width, width)}.items() if packed else shapes.items():
        weight, parametrization = weight_of(module, name, shape)
        if weight is None:
            continue
        whole = WeightView(prefix + name, weight)
        parts = (dict.fromkeys("qkv", width), 1) if packed else NOT_FUSED
        yield candidate_in(parts, whole, why_never(whole), name[0], parametrization=parametrization)


def mostly_attention(candidates: Sequence[Candidate], in_order: bool = True) -> bool:
    """Return whether a network is a transformer, not a network with some attention.

    True if queries and keys are more than a quarter of all matrices (a third in a transformer block), and the last
    matrix is not a convolution, as in networks that output images. Matrices with up to three inputs (colors,
    coordinates) are not counted.
    """
    matrices = [candidate for candidate in filter(is_matrix, candidates) if candidate.whole.shape[1] > 3]
    unknown = [c for c in matrices if c.attention and not any(view.role for view in c.views)]  # counted as three
    number = sum(len(c.views) if c.attention else 1 for c in matrices) + 2 * len(unknown)
    found = sum(view.role in ("q", "k") for c in matrices for view in c.views) + 2 * len(unknown)
    return 4 * found > number and not (in_order and len(matrices[-1].whole.shape) > 2)


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
