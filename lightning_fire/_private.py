"""All accesses to private attributes of Python's atexit, torch, accelerate and tqdm.

Tested with torch 2.6 to 2.15: new releases are checked against this file.
"""

import atexit
import copy
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves as tree_leaves
from torch.utils._pytree import tree_map as tree_map
from torch.utils.data import DataLoader

Dropouts = nn.modules.dropout._DropoutNd  # base of every dropout layer
BatchNorms = nn.modules.batchnorm._BatchNorm  # base of BatchNorm and SyncBatchNorm
RunningNorms = nn.modules.batchnorm._NormBase  # base of BatchNorm, SyncBatchNorm and InstanceNorm


def copy_of_loader(loader: DataLoader[Any]) -> DataLoader[Any]:
    """Return a shallow copy without the iterator that a loader with persistent workers keeps."""
    copied = copy.copy(loader)
    copied._iterator = None
    return copied


def forget_exit_functions() -> None:
    """Forget the functions of `atexit`: in a fork they are those of the process that it is a fork of."""
    atexit._clear()


def call_exit_functions() -> None:
    """Call the functions of `atexit` now, and forget them."""
    atexit._run_exitfuncs()


def shows_a_bar() -> bool:
    """Return whether tqdm shows a progress bar on the screen."""
    from tqdm import tqdm  # its bars are shared with all derived classes

    screens = sys.stderr, sys.stdout
    return any(not getattr(bar, "disable", True) and bar.fp in screens for bar in list(tqdm._instances))


def is_a(thing: object, *names: str) -> bool:
    """Return whether an object's class has one of these names, in `lightning` or `pytorch_lightning`."""
    return not {kind.__name__ for kind in type(thing).__mro__}.isdisjoint(names)


def is_compiled(module: nn.Module) -> bool:
    """Return whether a module, or a part of it, runs through `torch.compile`."""
    return getattr(module, "_compiler_ctx", None) is not None or any(  # Lightning's mark on a LightningModule
        type(part).__name__ == "OptimizedModule" or part._compiled_call_impl is not None for part in module.modules()
    )


def uncompiled(module: nn.Module) -> nn.Module:
    """Return the module that `torch.compile` has wrapped; another module as it is."""
    return module._orig_mod if is_a(module, "OptimizedModule") else module  # type: ignore[return-value]


def show_hooks(module: nn.Module) -> Callable[[], None]:
    """Make code compiled earlier by `torch.compile` run hooks that are registered on a module later.

    Compiled code checks whether `forward` is an attribute of the module itself. Call the returned function when the
    hooks are removed.
    """
    if "forward" in vars(module):
        return lambda: None
    vars(module)["forward"] = module.forward
    return lambda: vars(module).pop("forward", None)


def reset_of_attention(layer: nn.MultiheadAttention) -> Callable[[], None]:
    """Return the method by which attention draws its parameters, the only one of torch's layers that names it so."""
    return layer._reset_parameters


def is_in_backward() -> bool:
    """Return whether autograd is in a backward pass, in which gradient checkpointing repeats forward passes."""
    return torch._C._current_graph_task_id() != -1


def unscales_gradients(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an optimizer unscales the gradients of mixed precision in its own step, as fused ones do."""
    return getattr(optimizer, "_step_supports_amp_scaling", False)


def lerp_(targets: Sequence[Tensor], sources: Sequence[Tensor], weight: float) -> None:
    """Interpolate tensors towards others in place, `target + weight · (source - target)`, in few kernels."""
    torch._foreach_lerp_(targets, sources, weight)  # type: ignore[call-overload]


def children_of(module: nn.Module) -> dict[str, nn.Module | None]:
    """Return the children of a module by name, as registered; the public method omits repeated ones."""
    return module._modules


def copy_with_own_tensors(layer: nn.Module) -> nn.Module:
    """Copy a layer and its sublayers with their tensors; everything else is shared."""
    copied = copy.copy(layer)
    copied._parameters = {
        name: None if value is None else nn.Parameter(value.detach().clone(), requires_grad=value.requires_grad)
        for name, value in layer._parameters.items()
    }
    copied._buffers = {name: None if value is None else value.clone() for name, value in layer._buffers.items()}
    copied._modules = {
        name: None if child is None else copy_with_own_tensors(child) for name, child in layer._modules.items()
    }
    return copied
