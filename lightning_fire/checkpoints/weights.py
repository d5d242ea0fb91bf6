"""Selection of tensors of a file by name and shape: `lightning_fire.Weights` without a module."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from lightning_fire.checkpoints.stored import DTYPES, FLOATING, Stored
from lightning_fire.where import Selection, Weights, WeightView
from lightning_fire.where.layers import INTERLEAVED, Candidate, parts_of, plain, role_of, split
from lightning_fire.where.selection import ByName, Row, about
from lightning_fire.where.weights import row_of

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


_CONV1D = {"c_attn", "c_fc", "c_proj", "q_attn"}  # Hugging Face's GPT-2 stores these (in, out)
_UNFUSED = {"q_proj_weight": "q", "k_proj_weight": "k", "v_proj_weight": "v"}  # of nn.MultiheadAttention


def select_weights(tensors: Sequence[Stored], weights: Weights) -> Selection:
    """Select weight matrices of a file.

    Taken are floating tensors of at least 2 dimensions that are named as the weight of a layer. Embeddings are left
    alone, with an output layer tied to one, and so are convolutions of one column: these are taken only where a pattern
    of `include` spells out the layer's own name. The preset `auto` never means `gpt`: the tensors of a file do not show
    whether it holds a causal language model.

    Args:
        tensors: All tensors of the file.
        weights: The selection.

    Returns:
        The selected weights, without values. `print` shows every tensor of the file, taken or why not.

    Raises:
        ValueError: If nothing is selected, or a pattern matches no weight.

    Example:
        >>> tensors = [Stored("wte.weight", (9, 4), "F32"), Stored("h.0.mlp.c_fc.weight", (16, 4), "F32")]
        >>> print(select_weights(tensors, Weights()))
        parameter            shape  matrices
        wte.weight           9×4    9×4       embedding
        h.0.mlp.c_fc.weight  16×4   16×4      taken
        1 weight matrices taken
    """
    candidates = _candidates_of(tensors, weights.include or ())
    reasons = weights.reasons(candidates)
    rows = [row_of(candidate, stored.shape, reasons) for candidate, stored in zip(candidates, tensors, strict=True)]
    selection = Selection([view for view, reason in reasons.items() if not reason], rows)
    if not selection:
        raise ValueError(f"{weights} selects no weight of the file: {about(rows) or 'there are no tensors'}")
    return selection


def by_tensor(selection: Selection) -> dict[str, list[WeightView]]:
    """Return the selected weights by the name of the tensor that holds them."""
    grouped: dict[str, list[WeightView]] = {}
    for view in selection:
        grouped.setdefault(view.name.removesuffix(f"[{view.role}]"), []).append(view)
    return grouped


def not_taken(selection: Selection) -> list[Row]:
    """Return the rows of the tensors of which nothing is taken."""
    taken = by_tensor(selection)
    return [row for row in selection.rows if row.name not in taken]


def filled(view: WeightView, tensor: Tensor) -> WeightView:
    """Return a selected weight with values."""
    return replace(view, parameter=Parameter(tensor, requires_grad=False))


def _candidates_of(tensors: Sequence[Stored], include: Sequence[str]) -> list[Candidate]:
    layers: dict[str, set[str]] = {}
    for stored in tensors:
        if len(stored.shape) > 1:
            parents, layer, _ = path_of(stored.name)
            layers.setdefault(parents, set()).add(layer)
    conv1d = any(
        path_of(stored.name)[1:] == ("c_attn", "weight") and stored.shape[1:] == (3 * stored.shape[0],)
        for stored in tensors
    )
    return [_candidate(stored, conv1d, layers, include) for stored in tensors]


def _candidate(stored: Stored, conv1d: bool, layers: dict[str, set[str]], include: Sequence[str]) -> Candidate:
    candidate = Candidate(stored.name, reason=why_not(stored), aliases=stored.aliases)
    if candidate.reason and candidate.reason not in UNLESS_NAMED:
        return candidate
    parents, layer, leaf = path_of(stored.name)
    without_values = Parameter(torch.empty(stored.shape, device="meta"), requires_grad=False)
    layout = "in_out" if conv1d and layer in _CONV1D else "out_in"
    whole = WeightView(stored.name, without_values, layout=layout, role=_UNFUSED.get(leaf, ""))
    if candidate.reason or whole.role:
        reason = "" if any(_names(pattern, stored) for pattern in include) else candidate.reason
        return replace(candidate, views=[whole], reason=reason)
    fused = "qkv" if leaf == "in_proj_weight" else layer  # any of the names that `parts_of` knows
    parts = parts_of(fused, layers[parents], Module(), whole.shape)
    if isinstance(parts, str):
        reason, note = (parts, "") if parts == INTERLEAVED else ("", f"as one matrix: {parts}")
        return replace(candidate, views=[whole], reason=reason, note=note, attention=True)
    return replace(candidate, views=split(whole, parts) or [replace(whole, role=role_of(layer, layers[parents]))])


def _names(pattern: str, stored: Stored) -> bool:
    """Return whether a pattern spells out the layer's own name, and does not only match that of the whole model."""
    for name in stored.names:
        layer = path_of(name)[1]
        first = name.rindex(layer)
        spans = [match.span() for match in re.finditer(pattern, name)]
        if any(start <= first and end >= first + len(layer) and end > start + 1 for start, end in spans):
            return True
    return False


_STATISTICS = ("running_mean", "running_var")


class StoredTensors(ByName):
    """Selects tensors of a file: weights, biases, norm scales and all others; a tied one once.

    Example:
        >>> tensors = [Stored("fc.weight", (4, 4), "F32"), Stored("bn.running_mean", (4,), "F32")]
        >>> StoredTensors(buffers=False).select(tensors)
        ['fc.weight']
    """

    def __init__(self, include: list[str] | None = None, exclude: list[str] | None = None, buffers: bool = True):
        super().__init__(include, exclude)
        self.buffers = buffers

    def select(self, tensors: Sequence[Stored]) -> list[str]:
        """Apply the selection to the tensors of a file, and return the names of those that are taken."""
        self.check([name for stored in tensors for name in stored.names], "tensor")
        names = []
        for stored in tensors:
            if not self._takes(stored):
                continue
            if stored.reason or stored.dtype not in DTYPES:
                reason = stored.reason or f"of type {stored.dtype}"
                raise ValueError(f"{stored.name} cannot be replaced, it is {reason}: leave it out with --exclude")
            names.append(stored.name)
        if not names:
            raise ValueError(f"no tensor of the {len(tensors)} in the file is taken by {self}")
        return names

    def _takes(self, stored: Stored) -> bool:
        parameter = stored.dtype in FLOATING and not stored.name.endswith(_STATISTICS)
        return (self.buffers or parameter) and not self.reason(*stored.names)
