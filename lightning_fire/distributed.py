"""Several devices and processes: transfers, sharded tensors (DTensor, of FSDP2 and tensor parallelism), reductions."""

import inspect
import warnings
import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor, distributed, nn

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def to_list(values: Sequence[Tensor]) -> list[Any]:
    """Return tensors of one shape, on any devices, as numbers or (nested) lists. The host waits once."""
    return torch.stack([value.to(values[0].device) for value in values]).tolist() if values else []


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Move a tensor to a device. The host does not wait for a copy from CPU to GPU."""
    return tensor.to(device, non_blocking=device.type == "cuda")


def is_sharded(tensor: Tensor) -> "TypeGuard[DTensor]":
    """Return whether a tensor is a DTensor, whose parts or copies are distributed over processes."""
    return hasattr(tensor, "full_tensor")


def gathered(tensor: Tensor) -> Tensor:
    """Return a whole tensor; a sharded one is gathered from all processes, which must all call this.

    Returns:
        Detached; a plain tensor is not copied.
    """
    tensor = tensor.detach()
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def local(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that this process holds; a plain tensor as a whole.

    Returns:
        Detached; shares memory with `tensor`.
    """
    tensor = tensor.detach()
    return tensor.to_local() if is_sharded(tensor) else tensor


def is_expanded(tensor: Tensor) -> bool:
    """Return whether entries of a tensor share memory, as those of `expand` do: they cannot be written separately."""
    part = local(tensor)
    return any(size > 1 and stride == 0 for size, stride in zip(part.shape, part.stride(), strict=True))


@torch.no_grad()
def put(tensor: Tensor, whole: Tensor) -> None:
    """Replace the values of a tensor in place; of a sharded one, each process replaces its own part.

    Args:
        whole: New values, the same on all processes, of the shape of `tensor`; any dtype and device.
    """
    if not is_sharded(tensor):
        tensor.copy_(whole, non_blocking=tensor.is_cuda)
        return
    from torch.distributed.tensor import DTensor, Replicate

    mesh, part = tensor.device_mesh, local(tensor)
    everywhere = whole.detach().to(part.device, non_blocking=part.is_cuda)
    replicated = DTensor.from_local(everywhere, mesh, [Replicate()] * mesh.ndim, run_check=False)
    part.copy_(replicated.redistribute(placements=tensor.placements).to_local())


def reshard(module: nn.Module) -> None:
    """Shard the parameters of a module again under FSDP2: after a forward pass, some may be whole copies."""
    parts: Iterable[Any] = module.modules()
    for part in parts:
        if hasattr(part, "reshard") and hasattr(part, "unshard"):
            part.reshard()


def world_size() -> int:
    """Return the number of processes of `torch.distributed`, 1 if it is not initialized."""
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def rank() -> int:
    """Return the number of this process, 0 if `torch.distributed` is not initialized."""
    return distributed.get_rank() if world_size() > 1 else 0


def sum_over_ranks(tensor: Tensor, ranks: int) -> Tensor:
    """Return the sum of a tensor over all processes, which must all call this.

    Args:
        tensor: Any shape, the same on all processes; it may be overwritten.
        ranks: Number of processes; 1: this one alone.
    """
    if ranks > 1:
        distributed.all_reduce(tensor)
    return tensor


def mean_over_ranks(tensor: Tensor, ranks: int) -> Tensor:
    """Return the mean of a tensor over all processes, which must all call this.

    Args:
        tensor: Floating dtype, any shape, the same on all processes; it may be overwritten.
        ranks: Number of processes; 1: this one alone.
    """
    return sum_over_ranks(tensor, ranks) / ranks if ranks > 1 else tensor


def assign(costs: Sequence[int], ranks: int) -> list[int]:
    """Assign pieces of work to ranks greedily, the largest cost first (LPT).

    Args:
        costs: Cost of each piece.
        ranks: Number of ranks.

    Returns:
        The rank of each piece.

    Example:
        >>> assign([1, 7, 3, 2], 2)
        [1, 0, 1, 1]
    """
    load, owners = [0] * ranks, [0] * len(costs)
    for piece in sorted(range(len(costs)), key=lambda index: -costs[index]):
        owners[piece] = min(range(ranks), key=load.__getitem__)
        load[owners[piece]] += costs[piece]
    return owners


_warned: weakref.WeakKeyDictionary[object, set[str]] = weakref.WeakKeyDictionary()


def warn(message: str, owner: object) -> None:
    """Warn on rank 0, once for each owner, such as a model or an optimizer.

    By default Python shows a line once per process, even if it is about another model.
    """
    seen = _warned.setdefault(owner, set())
    if rank() == 0 and message not in seen:
        show_warning(message, depth=3)
    seen.add(message)


def show_warning(message: str, category: type[Warning] = UserWarning, depth: int | None = None) -> None:
    """Issue a warning, located `depth` frames above, even if it has been shown before.

    Default: the first caller outside of this package.
    """
    frames = [each.frame for each in inspect.stack(0)[1:]]
    outside = (each for each in frames if not each.f_globals.get("__name__", "").startswith("lightning_fire."))
    frame = next(outside, frames[-1]) if depth is None else frames[depth - 1]
    place = frame.f_code.co_filename, frame.f_lineno, frame.f_globals.get("__name__")
    warnings.warn_explicit(message, category, *place)  # without a registry of shown warnings
