"""Digests of a training: a short sha256 of weights, buffers, optimizer state and of each logged value."""

import hashlib
import math
import platform
import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import metadata
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, conv2d

Digests = dict[str, str]
Records = list[tuple[str, int | None, float]]  # key, step, value

_TIMES = ("seconds", "overhead", "per_second", "SPS", "mfu", "runtime", "time_elapsed", "fps")


def environment(libraries: Sequence[str] = ()) -> str:
    """Return what the digests of a case depend on beside this repository."""
    cpu = torch.backends.cpu.get_cpu_capability()
    versions = [f"{library} {_version(library)}" for library in ("torch", "lightning", *libraries)]
    return ", ".join([*versions, cpu, platform.machine(), f"arithmetic {_arithmetic()}"])


@cache
def _arithmetic() -> str:
    """Return a digest of operations whose last bits differ from processor to processor, whatever its settings are."""
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(2, 4, 8, 12, generator=generator), torch.randn(6, 4, 3, 3, generator=generator)
    output = conv2d(x, weight.requires_grad_(), padding=1)
    gradient = torch.autograd.grad(output.square().sum(), weight)
    matrix = x.view(24, 32)
    pointwise = [operation(matrix.abs()) for operation in (torch.exp, torch.log, torch.tanh, torch.sigmoid, torch.erf)]
    products = [matrix @ matrix.mT, matrix.softmax(1), matrix.var(0), batch_norm(x, None, None, training=True)]
    factors = [torch.linalg.svdvals(matrix), torch.linalg.qr(matrix), torch.linalg.eigh(matrix @ matrix.mT)]
    return digest(x, output, gradient, pointwise, products, factors)


def _version(library: str) -> str:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return "missing"


def digest(*values: Any) -> str:
    """Return the digest of tensors, numbers and texts, and of lists and dicts of them."""
    sha = hashlib.sha256()
    _feed(sha, values)
    return sha.hexdigest()[:12]


def _feed(sha: Any, value: Any) -> None:
    if isinstance(value, Tensor):
        value = value.detach().cpu().contiguous()
        sha.update(f"{value.dtype} {tuple(value.shape)}:".encode())
        sha.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, bool | str | None):
        sha.update(f"{value!r};".encode())
    elif isinstance(value, int | float):
        sha.update(struct.pack("<d", value))
    elif isinstance(value, Mapping):
        for key in sorted(value, key=str):
            sha.update(f"{key}=".encode())
            _feed(sha, value[key])
    elif isinstance(value, Iterable):
        sha.update(b"[")
        for each in value:
            _feed(sha, each)
        sha.update(b"]")
    else:
        raise TypeError(f"no digest of {value!r}")


def of_model(model: nn.Module, optimizers: Iterable[Any] = ()) -> Digests:
    """Digest the weights, buffers and flags of a model, and each of its optimizers."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    parameters = {name: [parameter, parameter.requires_grad] for parameter, name in names.items()}
    found = {"weights": digest(parameters), "buffers": digest(dict(model.named_buffers()))}
    for index, optimizer in enumerate(optimizers):
        states = {names[parameter]: state for parameter, state in optimizer.state.items()}
        groups = [
            {**group, "params": [names[parameter] for parameter in group["params"]]} for group in optimizer.param_groups
        ]
        found[f"optimizer {index}"] = digest(states, groups)
    return found


def is_kept(key: str) -> bool:
    """Return whether a logged value is digested: it is not a time, and not Lightning's `epoch`."""
    return not key.endswith(_TIMES) and key != "epoch"


def of_records(records: Records) -> Digests:
    """Digest logged values by key, with the last of them in clear; those by layer together."""
    by_key: dict[str, Records] = {}
    for key, step, value in records:
        if is_kept(key):
            group, _, layer = key.rpartition("/") if ".layers/" in key else (key, "", "")
            by_key.setdefault(group, []).append((layer, step, float(value)))
    return {f"log {key}": f"{rows[-1][2]:.6g} {digest(sorted(rows, key=_order))}" for key, rows in by_key.items()}


def _order(row: tuple[str, int | None, float]) -> tuple[float, str]:
    return (math.inf if row[1] is None else row[1], row[0])  # a stable sort: values of a step stay in order


def compared(found: Digests, whole: Digests, resumed: Digests, name: str, without: Sequence[str] = ()) -> Digests:
    """Add to digests those of a resumed training that differ from the whole one, their keys after a name."""
    keys = [key for key in dict.fromkeys([*whole, *resumed]) if key not in without]
    different = {key: resumed.get(key, "nothing") for key in keys if whole.get(key) != resumed.get(key)}
    return {**found, **{f"{name}, {key}": value for key, value in different.items()}}


def differences(found: Digests, stored: Digests) -> list[str]:
    """Describe each digest that differs."""
    keys = [*stored, *(key for key in found if key not in stored)]
    return [
        f"{key}: stored {stored.get(key, 'nothing')}, now {found.get(key, 'nothing')}"
        for key in keys
        if found.get(key) != stored.get(key)
    ]
