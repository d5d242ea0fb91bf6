"""Argument checks and the precision of computations."""

import math
from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from numbers import Integral, Real
from typing import Any, ParamSpec, TypeVar, get_args

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")


def at_least(least: float, whole: bool = True, **arguments: Any) -> None:
    """Raise a ValueError unless each argument is a number, by default an integer, of at least `least`."""
    for name, value in arguments.items():
        if isinstance(value, bool) or not isinstance(value, Integral if whole else Real):
            kind = "whole number" if whole else "number"
            raise ValueError(f"`{name}` must be a {kind} of at least {least}, got {value!r}")
        if not float(value) >= least:
            raise ValueError(f"`{name}` must be at least {least}, got {value}")


def one_of(options: Any, **arguments: object) -> None:
    """Raise a ValueError unless each argument is one of the options, at least two, of a `Literal`."""
    *others, last = map(repr, get_args(options))
    for name, value in arguments.items():
        if value not in get_args(options):
            raise ValueError(f"`{name}` must be {', '.join(others)} or {last}, got {value!r}")


def full_precision(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator: compute in the dtype of the arguments, also within `torch.autocast`."""

    @wraps(function)
    def computed(*args: P.args, **kwargs: P.kwargs) -> R:
        given = [
            each for value in (*args, *kwargs.values()) for each in (value if isinstance(value, list) else [value])
        ]
        tensors = [value for value in given if isinstance(value, Tensor)]
        kinds = {tensor.device.type for tensor in tensors if not tensor.is_meta}
        with ExitStack() as stack:
            for kind in kinds:
                if torch.is_autocast_enabled(kind):
                    stack.enter_context(torch.autocast(kind, enabled=False))
            return function(*args, **kwargs)

    return computed


def precise(tensor: Tensor) -> Tensor:
    """Return a tensor in float32, or in float64 if it is float64."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def real(tensor: Tensor, name: str) -> Tensor:
    """Check that matrices `(..., m, n)` are of a real floating dtype; return them `precise` and without gradient."""
    if not tensor.is_floating_point():
        raise TypeError(f"`{name}` must be of a real floating dtype, got {tensor.dtype}")
    if tensor.ndim < 2:
        raise ValueError(f"`{name}` must have at least 2 dimensions, got shape {tuple(tensor.shape)}")
    return precise(tensor.detach())


def finite(tensor: Tensor, name: str) -> Tensor:
    """Like `real`, and raise a ValueError for NaN or Inf."""
    tensor = real(tensor, name)
    if tensor.numel() and not all(map(math.isfinite, torch.stack(tensor.aminmax()).tolist())):
        raise ValueError(f"`{name}` must be finite, got a NaN or Inf in shape {tuple(tensor.shape)}")
    return tensor
