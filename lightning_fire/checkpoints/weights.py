"""Selection of weight matrices of a file: `lightning_fire.Weights` without a module."""

import re
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from lightning_fire.checkpoints.names import UNLESS_NAMED, path_of, why_not
from lightning_fire.checkpoints.stored import Stored
from lightning_fire.where import Selection, Weights, WeightView
from lightning_fire.where.layers import INTERLEAVED, Candidate, parts_of, role_of, split
from lightning_fire.where.selection import Row, about
from lightning_fire.where.weights import row_of

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
