"""Forward passes that are no part of training: they do not count for the statistics of hidden units."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

from torch import nn

_ignored: ContextVar[tuple[nn.Module, ...]] = ContextVar("ignored", default=())


@contextlib.contextmanager
def ignored_passes(model: nn.Module) -> Iterator[None]:
    """Context manager: forward passes of a model in this thread do not count for the statistics of hidden units."""
    token = _ignored.set((*_ignored.get(), *model.modules()))
    try:
        yield
    finally:
        _ignored.reset(token)


def is_ignored(module: nn.Module) -> bool:
    """Return whether a forward pass of a module is ignored now."""
    return any(part is module for part in _ignored.get())
