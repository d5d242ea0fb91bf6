"""Networks and optimizer states in the content of a file of `torch.save`, under one or several keys."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

State = Mapping[str, Tensor]

_USUAL = ("state_dict", "model_state_dict", "model", "module", "net")
LIGHTNING = {"state_dict", "current_model_state"}  # other keys of a Lightning checkpoint belong to callbacks or loops
_MOST_LEVELS = 5
_WEIGHT = re.compile(r"(^|[._])weight(_\w+)?$")
# entries of a training with tensors that are not a network
_OTHER = re.compile(r"optim|^opt(s|_state)?$|sched|callback|loop|rng|random|hyper_?param|hparam|config|^args$|scaler")
_MASTERS = re.compile(r"fp32|float32|master", re.IGNORECASE)  # names of Apex, Megatron and DeepSpeed
_AVERAGE = re.compile(r"(?<![a-z])(ema|swa|averaged?|shadow)(?![a-z])", re.IGNORECASE)


def networks_of(content: Any) -> dict[str, State]:
    """Find the networks in the content of a file.

    A network is a module, or a mapping from names to tensors with at least one 2-dimensional tensor. States of
    optimizers, of random generators and of other parts of a training are not networks. Returns state dicts by key; keys
    of nested entries are joined by dots; the key is empty if the content itself is the state dict. Without networks:
    the tensors of an entry with a usual name, or of the content.

    Example:
        >>> weights = {"fc.weight": nn.Linear(2, 3).weight}
        >>> list(networks_of({"actor": weights, "critic": weights, "optimizer": {"state": {}, "param_groups": []}}))
        ['actor', 'critic']
        >>> list(networks_of(weights))
        ['']
    """
    found = {key: state for key, state, network in _collections(content, "", _MOST_LEVELS) if network}
    entries = content if isinstance(content, Mapping) else {}
    if "pytorch-lightning_version" in entries:
        found = {key: state for key, state in found.items() if key in LIGHTNING}
    usual = ((key, _named_tensors(entries.get(key))) for key in _USUAL)
    return found or dict([next((pair for pair in usual if pair[1]), ("", _named_tensors(content)))])


def copies_of(content: Any) -> list[str]:
    """Return the keys of copies of weights that are not networks: lists of some EMA classes, float32 master weights."""
    others = [key for key, _, network in _collections(content, "", _MOST_LEVELS) if not network or "callbacks" in key]
    return [key for key in others if is_average(key) or _MASTERS.search(key)]


def is_average(key: str) -> bool:
    """Return whether a key names averaged weights.

    Example:
        >>> [is_average(key) for key in ("state_dict_ema", "ema.module", "EMA", "model", "schema")]
        [True, True, True, False, False]
    """
    return bool(_AVERAGE.search(key))


def states_of(content: Any, levels: int = _MOST_LEVELS) -> list[dict[str, Any]]:
    """Return the optimizer states (torch, fastai) in the content of a file, at any depth."""
    if isinstance(content, dict) and "state" in content and not content.keys().isdisjoint({"param_groups", "hypers"}):
        return [content]
    held = content.values() if isinstance(content, Mapping) else content if isinstance(content, list | tuple) else ()
    return [state for entry in held for state in states_of(entry, levels - 1)] if levels else []


def _collections(content: Any, key: str, levels: int) -> Iterator[tuple[str, State, bool]]:
    """Yield the entries that contain a matrix: key, tensors by name, and whether they are a network."""
    state = _named_tensors(content)
    if isinstance(content, nn.Module) or any(_WEIGHT.search(name) for name in state):
        if _has_matrix(state):
            yield key, state, True
        return
    if isinstance(content, Mapping):
        if {"state", "param_groups"} <= content.keys():
            return
        entries = {name: entry for name, entry in content.items() if isinstance(name, str)}
    else:
        entries = {str(index): entry for index, entry in enumerate(content)} if isinstance(content, list) else {}
    nested = False
    for name, entry in entries.items() if levels else ():
        for at, tensors, network in _collections(entry, f"{key}.{name}" if key else name, levels - 1):
            nested = True
            yield at, tensors, network and not _OTHER.search(name.lower())
    if not nested and _has_matrix(entries):
        yield key, state, isinstance(content, Mapping)


def _named_tensors(content: Any) -> dict[str, Tensor]:
    entries = content.state_dict() if isinstance(content, nn.Module) else content
    entries = entries if isinstance(entries, Mapping) else {}
    return {name: entry for name, entry in entries.items() if isinstance(name, str) and isinstance(entry, Tensor)}


def _has_matrix(entries: Mapping[str, Any]) -> bool:
    tensors = (entry for entry in entries.values() if isinstance(entry, Tensor))
    return any(tensor.ndim > 1 and tensor.is_floating_point() for tensor in tensors)
