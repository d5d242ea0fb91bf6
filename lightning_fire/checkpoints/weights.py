"""Selection of tensors of a file by name and shape: `lightning_fire.Weights` without a module."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch.nn import Parameter

from lightning_fire.checkpoints.candidate import LOW_RANK, Candidate
from lightning_fire.checkpoints.embeddings import embeddings_by_shape, is_named_embedding, is_of_tokens
from lightning_fire.checkpoints.fused import INTERLEAVED, NOT_FUSED, Parts, candidate_in, is_gated, parts_of, role_of
from lightning_fire.checkpoints.low_rank import low_rank_factors, named_pairs
from lightning_fire.checkpoints.model_config import ModelConfig
from lightning_fire.checkpoints.selected import declared, preset_for, reasons_of, row_of, selected_weights
from lightning_fire.checkpoints.stored import DTYPES, FLOATING, Stored
from lightning_fire.where import Selection, Weights, WeightView
from lightning_fire.where.layers import plain
from lightning_fire.where.selection import ByName, reasons_in_words
from lightning_fire.where.weight_view import Layout

EMBEDDING = "embedding"
_SINGLE_COLUMNS = "depthwise convolution, or one input channel: single columns"
_UNFUSED = {"q_proj_weight": "q", "k_proj_weight": "k", "v_proj_weight": "v"}  # of nn.MultiheadAttention
_WEIGHTS = {"weight", "in_proj_weight", *_UNFUSED}
_CONV1D = {"c_attn", "c_fc", "c_proj", "q_attn"}  # Hugging Face's GPT-2 stores these (in, out)
_DOWN = re.compile(r"(^|[._])(down|w2|wo|output|fc2|c_proj)([._]|$)[^.]*$")  # of an expert
_OUTPUTS = {"lm_head", "embed_out", "output", "head"}


def select_weights(
    tensors: Sequence[Stored], weights: Weights, config: ModelConfig | None = None, tied: bool = False
) -> Selection[WeightView]:
    """Select weight matrices of a file.

    Selected are floating tensors of at least 2 dimensions that are named like the weight of a layer. Embeddings, an
    output layer tied to one, and convolutions with one column are selected only if a pattern of `include` contains the
    layer's own name. The preset `auto` means `gpt` if `config` is that of a causal language model.

    Args:
        tensors: All tensors of the file.
        weights: The selection.
        config: Settings of the model, needed for the order of fused projections.
        tied: Also select the token embedding with a tied output layer, as the callback does.

    Returns:
        The selected weights, without values. `print` shows every tensor of the file, with the reason if not selected.

    Raises:
        ValueError: If nothing is selected, a pattern matches no weight, or no output layer is tied.

    Example:
        >>> tensors = [Stored("wte.weight", (9, 4), "F32"), Stored("h.0.mlp.c_fc.weight", (16, 4), "F32")]
        >>> print(select_weights(tensors, Weights()))
        parameter            shape  matrices
        wte.weight           9×4    9×4       embedding
        h.0.mlp.c_fc.weight  16×4   16×4      taken
        1 of 1 weight matrices taken, preset cnn
    """
    layers: dict[str, set[str]] = {}  # by parent
    conv1d = False
    for stored in tensors:
        if len(stored.shape) > 1:
            parents, layer, leaf = _path_of(stored.name)
            layers.setdefault(parents, set()).add(layer)
            conv1d |= (layer, leaf) == ("c_attn", "weight") and stored.shape[1:] == (3 * stored.shape[0],)
    config = config or ModelConfig()
    named = [*(weights.include or ()), *([f"^{re.escape(tied_embedding(tensors))}$"] if tied else ())]
    known, stacks = _known_reasons(tensors), stacks_of_experts(tensors, config)
    candidates = [
        _stack(stored, *stacks[stored.name])
        if stored.name in stacks and stored.dtype in FLOATING and not stored.reason
        else _candidate(stored, known.get(stored.name, ""), conv1d, layers, named, config)
        for stored in tensors
    ]
    candidates = declared(weights, candidates)
    layers_only = [candidate for candidate in candidates if candidate.reason != EMBEDDING]  # as those of a model
    preset = preset_for(weights, layers_only, config.is_causal_language_model)
    reasons = reasons_of(weights, candidates, preset)
    rows = [row_of(candidate, stored.shape, reasons) for candidate, stored in zip(candidates, tensors, strict=True)]
    selection = selected_weights(reasons, rows, layers_only, preset)
    if not selection:
        raise ValueError(f"{weights} selects no weight of the file: {reasons_in_words(rows) or 'it has no tensors'}")
    return selection


def by_tensor(selection: Selection[WeightView]) -> dict[str, list[WeightView]]:
    """Group the selected weights by the name of their tensor."""
    grouped: dict[str, list[WeightView]] = {}
    for view in selection:
        grouped.setdefault(view.name.removesuffix(f"[{view.role}]"), []).append(view)
    return grouped


def tied_embedding(tensors: Sequence[Stored]) -> str:
    """Return the name of the token embedding of a file with a tied output layer; otherwise raise a ValueError."""
    known = _known_reasons(tensors)
    embeddings = [stored for stored in tensors if _why_not(stored, known.get(stored.name, "")) == EMBEDDING]
    tables = [stored for stored in embeddings if any(is_of_tokens(_path_of(name)[1]) for name in stored.names)]
    if len(tables) != 1:
        found = ", ".join(stored.name for stored in tables) or "none"
        raise ValueError(f"--tied needs one token embedding, found {found}: spell out its name with --include instead")
    for stored in tensors:
        if _path_of(stored.name)[1] in _OUTPUTS and stored.shape == tables[0].shape:
            raise ValueError(f"--tied: {stored.name} is an output layer of its own, and taken without it")
    return tables[0].name


def select_tensors(tensors: Sequence[Stored], names: ByName, buffers: bool = True) -> list[Stored]:
    """Select tensors of a file, of any shape; without `buffers`, only floating ones except batch-norm statistics."""
    names.check([name for stored in tensors for name in stored.names], "tensor")
    taken = [stored for stored in tensors if not names.reason(*stored.names)]
    if not buffers:
        statistics = ("running_mean", "running_var")
        taken = [stored for stored in taken if stored.dtype in FLOATING and not stored.name.endswith(statistics)]
    for stored in taken:
        if reason := stored.reason or (f"of type {stored.dtype}" if stored.dtype not in DTYPES else ""):
            raise ValueError(f"{stored.name} cannot be replaced, it is {reason}: leave it out with --exclude")
    if not taken:
        raise ValueError(f"no tensor of the {len(tensors)} in the file is taken by {names}")
    return taken


def low_rank_factors_in_file(shapes: Mapping[str, tuple[int, ...]]) -> set[str]:
    """Return the `low_rank_factors` of tensors; all matrices if the file contains only pairs of factors."""
    factors = low_rank_factors(shapes)
    matrices = {name for name, shape in shapes.items() if len(shape) > 1}
    return matrices if matrices <= factors.union(*(pair[:2] for pair in named_pairs(shapes))) else factors


def stacks_of_experts(tensors: Sequence[Stored], config: ModelConfig) -> dict[str, tuple[Layout, Parts | str]]:
    """Return the layout of stacks of experts, (experts, out, in) or (experts, in, out), and their parts, by name.

    The outputs of down projections have the dimension of the other projections' inputs: the `hidden_size` of the model,
    or the input dimension of the router. Their inputs have the output dimension of the others; gate and up projections
    may be one weight.
    """
    groups: dict[str, list[Stored]] = {}
    for stored in tensors:
        if len(stored.shape) == 3 and re.search("expert|moe", stored.name):
            groups.setdefault(_layer_path(stored.name).rpartition(".")[0], []).append(stored)
    found: dict[str, tuple[Layout, Parts | str]] = {}
    for group, stacks in groups.items():
        around = group.rpartition(".")[0] if "expert" in group.rpartition(".")[2] else group
        beside = [s.shape for s in tensors if len(s.shape) == 2 and _layer_path(s.name).rpartition(".")[0] == around]
        width = config.settings.get("hidden_size") or next((s[1] for s in beside if s[0] == stacks[0].shape[0]), None)
        fitting: list[dict[str, tuple[Layout, Parts | str]]] = []
        layouts: tuple[tuple[Layout, int], ...] = (("stacked_out_in", 1), ("stacked_in_out", -1))
        for layout, step in layouts:
            sizes = {stored.name: stored.shape[1:][::step] for stored in stacks}  # (out, in)
            downs = {name for name in sizes if _DOWN.search(_layer_path(name))}
            outputs, inputs = {sizes[name][0] for name in downs}, {sizes[name][1] for name in downs}
            ups = [sizes[name] for name in sizes.keys() - downs]
            if not ups or len(outputs) != 1 or len(inputs) != 1 or (width and outputs != {width}):
                continue
            (inner,) = inputs
            if all({up[1]} == outputs and up[0] in (inner, 2 * inner) for up in ups):
                both = {name for name in sizes.keys() - downs if sizes[name][0] != inner}
                fitting.append({n: (layout, _gate_and_up(inner, config) if n in both else NOT_FUSED) for n in sizes})
        found |= fitting[0] if len(fitting) == 1 else {}
    return found


def _gate_and_up(width: int, config: ModelConfig) -> Parts | str:
    if config.architecture.startswith("GptOss"):
        return {"gate": 1, "up": 1}, width
    known = "stack of gate and up projections in an order that config.json shows: give --config"
    return ({"gate": width, "up": width}, 1) if config.architecture else known


def _layer_path(name: str) -> str:
    return plain(name).removesuffix(".weight")


def _path_of(name: str) -> tuple[str, str, str]:
    """Split `h.0.attn.c_attn.weight` into the parents `h.0.attn`, the layer `c_attn` and the tensor `weight`."""
    *parents, layer, leaf = ["", *plain(name).split(".")]
    return ".".join(parents).strip("."), layer, leaf


def _known_reasons(tensors: Sequence[Stored]) -> dict[str, str]:
    """Return reasons that depend on all tensors of a file."""
    factors = low_rank_factors_in_file({stored.name: stored.shape for stored in tensors})
    return dict.fromkeys(embeddings_by_shape(tensors), EMBEDDING) | dict.fromkeys(factors, LOW_RANK)


def _stack(stored: Stored, layout: Layout, parts: Parts | str) -> Candidate:
    without_values = Parameter(torch.empty(stored.shape, device="meta"), requires_grad=False)
    whole = WeightView(stored.name, without_values, stored.shape[0], layout)
    return candidate_in(parts, whole, aliases=stored.aliases)


def _candidate(
    stored: Stored, known: str, conv1d: bool, layers: dict[str, set[str]], include: Sequence[str], config: ModelConfig
) -> Candidate:
    candidate = Candidate(stored.name, reason=_why_not(stored, known), aliases=stored.aliases)
    if candidate.reason not in ("", EMBEDDING, _SINGLE_COLUMNS):
        return candidate
    parents, layer, leaf = _path_of(stored.name)
    without_values = Parameter(torch.empty(stored.shape, device="meta"), requires_grad=False)
    layout: Layout = "in_out" if conv1d and layer in _CONV1D else "out_in"
    whole = WeightView(stored.name, without_values, layout=layout, role=_UNFUSED.get(leaf, ""))
    if candidate.reason or whole.role:
        reason = "" if any(_spells_out(pattern, stored) for pattern in include) else candidate.reason
        return replace(candidate, views=[whole], reason=reason)
    fused = "qkv" if leaf == "in_proj_weight" else layer  # any name known to `parts_of`
    parts = parts_of(fused, layers[parents], config.attention(), whole.shape)
    if isinstance(parts, str):
        hint = "" if config.architecture else ", which config.json shows: give --config"
        reason, note = (f"{parts}{hint}", "") if parts == INTERLEAVED else ("", f"as one matrix: {parts}")
        return replace(candidate, views=[whole], reason=reason, note=note, attention=not is_gated(fused))
    return candidate_in(parts, whole, role=role_of(layer, layers[parents]), aliases=stored.aliases)


def _why_not(stored: Stored, known: str) -> str:
    """Return the first reason why a tensor is not the weight matrix of a layer, from its name or `known`."""
    _, layer, leaf = _path_of(stored.name)
    dimensions = len(stored.shape)
    paths = [_path_of(name) for name in stored.names]
    embedding = any(is_named_embedding(layer, parents.rpartition(".")[2]) for parents, layer, _ in paths)
    reasons = {
        stored.reason: stored.reason,
        "not a matrix": dimensions < 2,
        "part of a parametrized weight": re.search(r"\bparametrizations\.|\bweight_[guv]$|\bweight_orig$", stored.name),
        "token or position embedding": re.search(r"(^|_)tokens?$", leaf) or is_named_embedding("", leaf),
        "not named as the weight of a layer": leaf not in _WEIGHTS,
        f"quantized or complex ({stored.dtype})": stored.dtype not in FLOATING,
        "empty": 0 in stored.shape,
        "normalization": re.search(r"norm(?!al)|^(ln|bn)(_|\d|$)", layer),
        LOW_RANK: known == LOW_RANK,
        "stack of experts in an order that is not known": dimensions == 3 and re.search("expert|moe", stored.name),
        "transposed convolution, which may be grouped": dimensions > 2
        and re.search("transpose|deconv|upconv", stored.name.lower()),
        _SINGLE_COLUMNS: dimensions > 2 and stored.shape[1] == 1,
        EMBEDDING: dimensions == 2 and (embedding or known == EMBEDDING),  # one of patches is a convolution
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def _spells_out(pattern: str, stored: Stored) -> bool:
    """Return whether a pattern contains the layer's own name, not only that of the whole model."""
    for name in stored.names:
        layer = _path_of(name)[1]
        first = name.rindex(layer)
        for start, end in (match.span() for match in re.finditer(pattern, name)):
            if start <= first and end >= first + len(layer) and end > start + 1:
                return True
    return False
