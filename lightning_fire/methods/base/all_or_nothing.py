"""All or nothing: a change is completed after Ctrl-C, and undone after an error."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightning_fire.distributed import local
from lightning_fire.methods.base.optimizers import Optimizers, with_inner


class Write(NamedTuple):
    """New values of a part of a tensor: `view_of(tensor)[index] = value`."""

    tensor: Tensor
    index: Any
    value: Tensor | float
    view_of: Callable[[Tensor], Tensor] = lambda tensor: tensor

    def into(self, tensor: Tensor) -> None:
        """Write the values into the part of a tensor like `tensor`."""
        part = self.view_of(tensor)
        part[self.index] = self.value.to(part) if isinstance(self.value, Tensor) else self.value


def insist(call: Callable[[], object], after_errors: bool = True) -> None:
    """Call an idempotent function; on any exception, Ctrl-C included, call it once more, then re-raise."""
    try:
        call()
    except BaseException as error:
        if after_errors or not isinstance(error, Exception):
            call()
        raise


def restore(values: Iterable[tuple[Tensor, Any, Tensor]]) -> None:
    """Write old values back, each given as tensor, index and values; on any exception once more."""
    former = list(values)

    @torch.no_grad()
    def write_back() -> None:
        for tensor, index, value in former:
            tensor[index] = value

    insist(write_back)


@contextmanager
def undone_after_error(writes: Iterable[tuple[Tensor, Any]]) -> Iterator[None]:
    """Context manager: after an error, restore parts of tensors, each given as a tensor and an index."""
    former = [(tensor, index, tensor[index].clone()) for tensor, index in writes]
    try:
        yield
    except Exception:
        restore(former)
        raise


@contextmanager
def same_tensors_after_error(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Context manager: after an error, restore tensors, of sharded ones the parts that this process holds."""
    with undone_after_error((distinct(tensor), ...) for tensor in tensors):
        yield


@contextmanager
def same_optimizers_after_error(optimizers: Optimizers, touched: Collection[Tensor] | None) -> Iterator[None]:
    """Context manager: after an error, restore attributes, groups and states of optimizers.

    Args:
        optimizers: One or several; those that they wrap are included.
        touched: Parameters whose state may be changed in place, too. None: all.
    """
    reached = with_inner(optimizers)
    former = [(kept, dict(kept)) for optimizer in reached for kept in _mappings_of(optimizer)]
    states = [
        state
        for optimizer in reached
        for key, state in optimizer.state.items()
        if isinstance(state, Mapping) and (touched is None or key in touched)
    ]
    tensors = [value for state in states for value in state.values() if isinstance(value, Tensor)]

    def put_back() -> None:
        for kept, before in former:
            kept.clear()
            kept.update(before)

    try:
        with same_tensors_after_error(tensors):
            yield
    except Exception:
        insist(put_back)
        raise


def distinct(tensor: Tensor, like: Tensor | None = None) -> Tensor:
    """Return the local part of a tensor, without entries that share memory, such as those of `expand`.

    Args:
        tensor: Any tensor.
        like: A tensor of its shape, whose entries are repeated. Default: `tensor`.

    Returns:
        A detached view, into which values can be written.
    """
    pattern = local(tensor if like is None else like)
    repeated = (size > 1 and not stride for size, stride in zip(pattern.shape, pattern.stride(), strict=True))
    return local(tensor)[tuple(slice(1 if each else None) for each in repeated)]


def _mappings_of(optimizer: Any) -> Iterator[Any]:
    yield vars(optimizer)
    yield optimizer.state
    yield from (state for state in optimizer.state.values() if isinstance(state, Mapping))
    yield from optimizer.param_groups
