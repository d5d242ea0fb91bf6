"""Forward passes outside of training: statistics of hidden units ignore them, and modes are restored."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

from torch import nn

_ignored: ContextVar[tuple[nn.Module, ...]] = ContextVar("ignored", default=())


@contextlib.contextmanager
def ignored_passes(model: nn.Module) -> Iterator[None]:
    """Context manager: statistics of hidden units ignore forward passes of a model in this thread."""
    token = _ignored.set((*_ignored.get(), *model.modules()))
    try:
        yield
    finally:
        _ignored.reset(token)


def is_ignored(module: nn.Module) -> bool:
    """Return whether a forward pass of a module is ignored now."""
    return any(part is module for part in _ignored.get())


@contextlib.contextmanager
def keeping_modes(module: nn.Module) -> Iterator[None]:
    """Context manager: restore the mode, training or evaluation, of each part of a module."""
    modes = [(part, part.training) for part in module.modules()]
    try:
        yield
    finally:
        for part, training in modes:
            if type(part).train is not nn.Module.train:
                part.train(training)  # an override may do more than set the flag
        for part, training in modes:
            part.training = training
