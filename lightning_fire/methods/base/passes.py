"""Forward passes outside of training: nothing of the model changes, and statistics of hidden units ignore them."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import nn
from torch.nn.parameter import is_lazy

from lightning_fire.distributed import is_expanded

_ignored: ContextVar[tuple[nn.Module, ...]] = ContextVar("ignored", default=())


@contextmanager
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


@contextmanager
def same_buffers(model: nn.Module) -> Iterator[None]:
    """Context manager: restore buffers that a forward pass changes or replaces, such as the statistics of BatchNorm."""
    held = [(part, name, own) for part in model.modules() for name, own in part.named_buffers(recurse=False)]
    buffers = [buffer.detach() for buffer in model.buffers() if not (is_lazy(buffer) or is_expanded(buffer))]
    values = [buffer.clone() for buffer in buffers]
    try:
        yield
    finally:
        for part, name, own in held:
            if getattr(part, name) is not own:
                setattr(part, name, own)
        for buffer, value in zip(buffers, values, strict=True):
            buffer.copy_(value)


@contextmanager
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
