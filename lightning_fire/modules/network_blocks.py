"""The repeated blocks of a network, the units of sharding and of activation checkpointing."""

from collections.abc import Sequence
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def blocks_of(net: nn.Module) -> Sequence[nn.Module]:
    """Return the blocks of a network: its `ModuleList` of a single class with the most parameters; empty without one.

    Example:
        >>> from lightning_fire.nets import GPT
        >>> [type(block).__name__ for block in blocks_of(GPT(vocab_size=8, block_size=4, depth=2, heads=1, dim=4))]
        ['_CausalBlock', '_CausalBlock']
    """
    lists = [m for m in net.modules() if isinstance(m, nn.ModuleList) and len({type(part) for part in m}) == 1]
    largest = max(lists, key=lambda blocks: sum(p.numel() for p in blocks.parameters()), default=nn.ModuleList())
    return tuple(largest)


def checkpoint_activations(net: nn.Module) -> None:
    """Make each block store only its input and recompute its activations in the backward pass.

    Hugging Face models use their own implementation. Names of parameters do not change.
    """
    for name in ("activation_checkpointing_enable", "gradient_checkpointing_enable"):  # the latter before 5.0
        if hasattr(net, name):
            getattr(net, name)({"use_reentrant": False})
            return
    if not (blocks := blocks_of(net)):
        raise ValueError(f"`activation_checkpointing` needs a ModuleList of blocks, {type(net).__name__} has none")
    for block in blocks:
        block.forward = MethodType(_checkpointed, block)


def shard_by_block(net: nn.Module, mesh: Any, precision: str) -> None:
    """Shard the parameters of each block of a network, then all others, over the ranks (FSDP2, `fully_shard`).

    `mesh` is the `device_mesh` of Lightning's `ModelParallelStrategy`. With the `precision` `bf16-mixed` the weights of
    blocks are gathered in bfloat16, as autocast would cast them, and gradients are reduced in float32. A sharded
    network is left unchanged.
    """
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    if isinstance(net, FSDPModule):
        return
    if mesh["tensor_parallel"].size() > 1:
        raise ValueError(
            "LanguageModel shards only by FSDP2: use ModelParallelStrategy(data_parallel_size=number of all devices,"
            f" tensor_parallel_size=1), got tensor_parallel_size={mesh['tensor_parallel'].size()}"
        )
    low = torch.bfloat16 if precision == "bf16-mixed" else None
    policy = MixedPrecisionPolicy(low, low and torch.float32)
    for block in blocks_of(net):
        fully_shard(block, mesh=mesh["data_parallel"], mp_policy=policy)
    fully_shard(net, mesh=mesh["data_parallel"])


def _checkpointed(block: nn.Module, *args: Any, **options: Any) -> Any:
    if not torch.is_grad_enabled():
        return type(block).forward(block, *args, **options)
    return checkpoint(type(block).forward, block, *args, use_reentrant=False, **options)
