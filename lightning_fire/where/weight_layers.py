"""Linear and convolution layers, of torch and a few known ones of other libraries."""

import re

from torch import nn
from torch.nn.utils import parametrize

from lightning_fire.where.layers import ComputedWeight, own_parameters
from lightning_fire.where.weight_view import Layout, WeightView

CONVOLUTIONS = nn.Conv1d, nn.Conv2d, nn.Conv3d
_TRANSPOSED = nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d
LAYERS = nn.Linear, *CONVOLUTIONS, *_TRANSPOSED
# by the full names of their classes: a forward that only pads or casts around the product
_KNOWN = {
    "timm.layers.conv2d_same.Conv2dSame",
    "timm.layers.linear.Linear",
    "torch_geometric.nn.dense.linear.Linear",
    "transformers.models.falcon.modeling_falcon.FalconLinear",
    "diffusers.models.autoencoders.autoencoder_kl_wan.WanCausalConv3d",
    "diffusers.models.autoencoders.autoencoder_kl_cogvideox.CogVideoXSafeConv3d",
}
_ROUTER = re.compile(r"transformers\..*(TopKRouter|Llama4Router)", re.IGNORECASE)


def weight_layers(model: nn.Module) -> list[nn.Module]:
    """List the Linear and convolution layers of a model, including Hugging Face's Conv1D.

    Args:
        model: Any module.
    """
    return [module for module in model.modules() if isinstance(module, LAYERS) or is_conv1d(module)]


def computes_weights(module: nn.Module) -> bool:
    """Return whether a layer computes a weight from other parameters, as with `weight_norm`, old or new."""
    computed = any(isinstance(parameter, ComputedWeight) for parameter in own_parameters(module).values())
    return computed or parametrize.is_parametrized(module)


def is_conv1d(module: nn.Module) -> bool:
    """Return whether a module is Hugging Face's Conv1D, a Linear whose weight is stored `(in, out)`."""
    return any(kind.__name__ == "Conv1D" for kind in type(module).__mro__) and hasattr(module, "nf")


def whole_weight(path: str, module: nn.Module) -> WeightView | None:
    """Return the weight of a Linear or convolution layer as one matrix; None for another module."""
    weight = own_parameters(module).get("weight")
    known = isinstance(module, LAYERS) or is_conv1d(module) or _is_known(module)
    if weight is None or not known:
        return None
    layout: Layout = "transposed_conv" if isinstance(module, _TRANSPOSED) else "out_in"
    layout = "in_out" if is_conv1d(module) else layout
    groups = getattr(module, "groups", 1) if weight.ndim > 2 else 1
    return WeightView(f"{path}.weight".lstrip("."), weight, groups, layout)


def has_own_forward(module: nn.Module) -> bool:
    """Return whether a subclass of a layer of torch computes its output in another way than that layer."""
    kind = next((kind for kind in LAYERS if isinstance(module, kind)), None)
    if kind is None or is_conv1d(module) or _is_known(module):
        return False
    names = ("forward", "_conv_forward")
    return any(getattr(type(module), name, None) is not getattr(kind, name, None) for name in names)


def _is_known(module: nn.Module) -> bool:
    names = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(module).__mro__]
    return any(name in _KNOWN or _ROUTER.fullmatch(name) for name in names)
