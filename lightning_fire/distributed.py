"""Tensors that are sharded over several processes (DTensor, as FSDP2 and tensor parallelism have them)."""

import torch
from torch import Tensor, nn


def is_sharded(tensor: Tensor) -> bool:
    """Tell whether a tensor is a DTensor, of which each process holds a part or a copy.

    Args:
        tensor: Any tensor.
    """
    return hasattr(tensor, "full_tensor")


def gathered(tensor: Tensor) -> Tensor:
    """Return a whole tensor; of a sharded one, put together from all processes, which must all call this.

    Args:
        tensor: Any tensor.

    Returns:
        Detached; a plain tensor is not copied.
    """
    tensor = tensor.detach()
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def local(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that this process holds: of a plain tensor, all of it.

    Args:
        tensor: Any tensor.

    Returns:
        Detached; shares memory with `tensor`.
    """
    tensor = tensor.detach()
    return tensor.to_local() if is_sharded(tensor) else tensor


@torch.no_grad()
def put(tensor: Tensor, whole: Tensor) -> None:
    """Replace the values of a tensor in place; of a sharded one, each process replaces its own part.

    Args:
        tensor: Any tensor.
        whole: The values, the same on all processes, of the shape of `tensor`; of any dtype and device.
    """
    if not is_sharded(tensor):
        tensor.copy_(whole)
        return
    from torch.distributed.tensor import DTensor, Replicate

    mesh, part = tensor.device_mesh, local(tensor)
    replicated = DTensor.from_local(whole.detach().to(part.device), mesh, [Replicate()] * mesh.ndim, run_check=False)
    part.copy_(replicated.redistribute(placements=tensor.placements).to_local())


def reshard(module: nn.Module) -> None:
    """Make every parameter of a module that FSDP2 wraps sharded again: after a forward pass, some may be whole copies.

    Args:
        module: Any module; one without FSDP2 is left as it is.
    """
    for part in module.modules():
        if hasattr(part, "reshard") and hasattr(part, "unshard"):
            part.reshard()
