"""Linear and convolution layers, also of other libraries: their weights, layouts and parametrizations."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from lightning_fire.where.candidate import DEPTHWISE
from lightning_fire.where.factors import OTHER, factors_of_weight
from lightning_fire.where.fused import classes_of
from lightning_fire.where.trained import why_not_trained
from lightning_fire.where.usage import usages
from lightning_fire.where.weight_view import Layout, WeightView

_CONV = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
# attributes with the numbers of outputs and inputs of Linear layers in PyTorch Geometric, fairscale and others
_LINEAR_SIZES = (
    *(("out_features", "in_features"), ("out_channels", "in_channels")),
    *(("output_size", "input_size"), ("out_dim", "in_dim")),
)
_GAINS = ("weight_gain", "weight_scale", "scale", "lr_mul", "lr_mult", "lr_multiplier")  # of StyleGAN and others


def weight_layers(model: nn.Module) -> list[nn.Module]:
    """List the Linear and convolution layers of a model, including Hugging Face's Conv1D.

    Args:
        model: Any module.
    """
    return [module for module in model.modules() if is_usual_layer(module)]


def is_layer(module: nn.Module) -> bool:
    """Return whether a module is a Linear or convolution layer, also one of another library."""
    return is_usual_layer(module) or _linear_layout(module) is not None


def is_usual_layer(module: object) -> bool:
    """Return whether a module is a Linear or convolution layer of torch, or Hugging Face's Conv1D."""
    return isinstance(module, (nn.Linear, *_CONV, *_TRANSPOSED)) or _is_conv1d(module)


def _is_conv1d(module: object) -> bool:
    """Return whether a module is Hugging Face's Conv1D, a Linear whose weight is stored `(in, out)`."""
    return "Conv1D" in classes_of(module) and hasattr(module, "nf")


def _linear_layout(module: nn.Module) -> Layout | None:
    """Return the layout of a Linear layer of another library, by its source or declared sizes; otherwise None."""
    weight = dict(nn.Module.named_parameters(module, recurse=False)).get("weight")
    if weight is None or weight.ndim != 2 or isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return None
    usage = usages(type(module)).get("weight")
    if usage and not usage.indexed:
        return usage.layout
    for names in _LINEAR_SIZES:
        sizes = tuple(getattr(module, name, None) for name in names)
        if tuple(weight.shape) in (sizes, sizes[::-1]):
            return "out_in" if tuple(weight.shape) == sizes else "in_out"
    return None


def layout_of(module: nn.Module) -> Layout:
    """Return the layout of a layer's weight."""
    if isinstance(module, _TRANSPOSED):
        return "transposed_conv"
    if is_usual_layer(module):
        return "in_out" if _is_conv1d(module) else "out_in"
    return _linear_layout(module) or "out_in"


def rescales(module: nn.Module) -> str:
    """Return the reason to leave out a layer that scales, masks or normalizes its weight; empty if it does not."""
    kind, read = type(module).__name__, factors_of_weight(type(module))
    gains = [name for name in _GAINS if isinstance(getattr(module, name, None), int | float)]
    names = [*sorted(read - {OTHER}), *(gains if not is_usual_layer(module) else [])]
    for name in names:
        value = getattr(module, name, None)
        if not (isinstance(value, int | float) and value == 1):
            return f"scaled in the forward pass, by `{name}` of {kind}"
    return f"scaled or normalized in the forward pass of {kind}" if OTHER in read else ""


def why_never(view: WeightView) -> str:
    """Return why a weight can never be selected; empty if it can."""
    if not view.parameter.is_floating_point():  # before frozen: a quantized weight is always frozen too
        return f"quantized or complex ({view.parameter.dtype})"
    if reason := why_not_trained(view.parameter):
        return reason
    if view.parameter.numel() == 0:
        return "empty"
    if view.groups > 1 and view.shape[1] == 1:
        return DEPTHWISE
    return ""


def weight_of(module: nn.Module, name: str, shape: tuple[int, ...]) -> tuple[nn.Parameter | None, str]:
    """Return a weight, and the names of its parametrizations or old-style hooks; empty if none.

    A computed weight is represented by a parameter of its shape, as computing it may change buffers.
    """
    own = dict(nn.Module.named_parameters(module, recurse=False, remove_duplicate=False))
    sources = [parameter for key, parameter in own.items() if key.startswith(f"{name}_")]
    if parametrize.is_parametrized(module, name):
        parametrizations = module.get_submodule("parametrizations").get_submodule(name)
        by = ", ".join(type(part).__name__.lstrip("_") for part in parametrizations.children())
        sources = list(parametrizations.parameters())
    elif {f"{name}_g", f"{name}_v"} <= own.keys():
        by = "weight_norm"
    elif f"{name}_orig" in own:
        by = "pruning" if hasattr(module, f"{name}_mask") else "spectral_norm"
    else:
        return own.get(name), ""
    trained = not all(map(why_not_trained, sources))
    return nn.Parameter(torch.empty(shape, device="meta"), requires_grad=trained), by


def computes_weights(module: nn.Module) -> bool:
    """Return whether a layer computes a weight from other parameters, as with `weight_norm`, old or new."""
    own = [key for key, _ in module.named_parameters(recurse=False) if key.endswith(("_g", "_v", "_orig"))]
    return parametrize.is_parametrized(module) or any(
        isinstance(vars(module).get(key.rpartition("_")[0]), Tensor) for key in own
    )


def stored_shape(module: Any) -> tuple[int, ...]:
    """Return the stored shape of a layer's weight, which a parametrization may compute."""
    if isinstance(module, nn.Linear):
        return module.out_features, module.in_features
    if not is_usual_layer(module):
        return tuple(module.weight.shape)
    if _is_conv1d(module):
        return getattr(module, "nx", module.nf), module.nf
    channels = [module.out_channels, module.in_channels]
    first, second = reversed(channels) if isinstance(module, _TRANSPOSED) else channels
    return first, second // module.groups, *module.kernel_size
