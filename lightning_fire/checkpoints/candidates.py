"""The weights of a file with their layouts: which side is out, and where query, key and value are."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from lightning_fire.checkpoints.names import UNLESS_NAMED, path_of, why_not
from lightning_fire.checkpoints.stored import Stored
from lightning_fire.where import WeightView
from lightning_fire.where.layers import parts_of, role_of

_CONV1D = {"c_attn", "c_fc", "c_proj", "q_attn"}  # Hugging Face's GPT-2 stores these (in, out)
_INTERLEAVED = {"query_key_value"}  # GPT-NeoX, BLOOM, Falcon: head by head
_UNFUSED = {"q_proj_weight": "q", "k_proj_weight": "k", "v_proj_weight": "v"}  # of nn.MultiheadAttention


@dataclass
class Candidate:
    """A stored tensor, and what of it could be replaced.

    Attributes:
        stored: The tensor.
        views: Its parts: one, several for a fused weight, none if it is no weight. Their parameter has no values.
        obstacle: Why it is not replaced; empty if it can be.
        note: What is particular about it.
        attention: Whether it holds a query or key projection.
    """

    stored: Stored
    views: list[WeightView] = field(default_factory=list)
    obstacle: str = ""
    note: str = ""
    attention: bool = False

    @property
    def kind(self) -> str:
        """`linear` or `conv`."""
        return "linear" if len(self.stored.shape) == 2 else "conv"


def candidates_of(tensors: Sequence[Stored]) -> list[Candidate]:
    """List all tensors of a file as candidates, in the order of the file.

    Args:
        tensors: The tensors of all parts of the file.

    Example:
        >>> fused, output = Stored("attn.c_attn.weight", (8, 24), "F32"), Stored("attn.c_proj.weight", (8, 8), "F32")
        >>> [(view.name, view.layout) for candidate in candidates_of([fused, output]) for view in candidate.views]
        ... # doctest: +NORMALIZE_WHITESPACE
        [('attn.c_attn.weight[q]', 'in_out'), ('attn.c_attn.weight[k]', 'in_out'), ('attn.c_attn.weight[v]', 'in_out'),
         ('attn.c_proj.weight', 'in_out')]
    """
    layers: dict[str, set[str]] = {}
    for stored in tensors:
        if len(stored.shape) > 1:
            parents, layer, _ = path_of(stored.name)
            layers.setdefault(parents, set()).add(layer)
    conv1d = any(_is_conv1d(stored) for stored in tensors)
    return [_candidate(stored, conv1d, layers) for stored in tensors]


def _is_conv1d(stored: Stored) -> bool:
    return path_of(stored.name)[1:] == ("c_attn", "weight") and stored.shape[1:] == (3 * stored.shape[0],)


def _candidate(stored: Stored, conv1d: bool, layers: dict[str, set[str]]) -> Candidate:
    reason = why_not(stored)
    if reason and reason not in UNLESS_NAMED:
        return Candidate(stored, obstacle=reason)
    parents, layer, leaf = path_of(stored.name)
    layout = "in_out" if conv1d and layer in _CONV1D else "out_in"
    without_values = nn.Parameter(torch.empty(stored.shape, device="meta"), requires_grad=False)
    whole = WeightView(stored.name, without_values, layout=layout, role=_UNFUSED.get(leaf, ""))
    if reason or whole.role:
        return Candidate(stored, [whole], reason, attention=bool(whole.role))
    siblings = layers[parents]
    if layer in _INTERLEAVED:
        return Candidate(stored, [whole], "fused query-key-value in an interleaved order", attention=True)
    fused = "qkv" if leaf == "in_proj_weight" else layer  # any of the names that `parts_of` knows
    parts = parts_of(fused, siblings, nn.Module(), whole.shape)
    if isinstance(parts, str):
        return Candidate(stored, [whole], note=f"as one matrix: {parts}", attention=True)
    views = list(_split(whole, parts)) or [replace(whole, role=role_of(layer, siblings))]
    return Candidate(stored, views, attention=any(view.role for view in views))


def _split(whole: WeightView, parts: list[tuple[str, int, int]]) -> Iterator[WeightView]:
    for role, first, last in parts:
        yield replace(whole, name=f"{whole.name}[{role}]", rows=(first, last), role=role)
