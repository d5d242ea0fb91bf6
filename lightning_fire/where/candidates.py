"""Everything in a model that could be selected: Linear, convolution and attention weights, with their layouts."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils import parametrize

from lightning_fire.where.attention import parts_of, role_of
from lightning_fire.where.class_name import class_name
from lightning_fire.where.views import WeightView

_CONV = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@dataclass
class Candidate:
    """A weight that could be selected.

    Attributes:
        name: Name of the weight, without `torch.compile`'s prefix.
        kind: `linear` or `conv`.
        views: Its parts: one, or several for a fused weight.
        obstacle: Why it can never be selected; empty if it can.
        parametrization: What computes it, if it is no parameter itself, such as `weight_norm`. Its views then only
            have the right shapes.
        attention: Whether it holds a query or key projection, in an order that is known or not.
    """

    name: str
    kind: str
    views: list[WeightView] = field(default_factory=list)
    obstacle: str = ""
    parametrization: str = ""
    attention: bool = False

    def __post_init__(self):
        self.attention = self.attention or any(view.role for view in self.views)


def candidates_of(model: nn.Module) -> list[Candidate]:
    """List the candidates of a model, in module order, tied weights once.

    Args:
        model: Any module, compiled or not.

    Raises:
        ValueError: If a lazy layer is not initialised yet.
    """
    for name, parameter in model.named_parameters():
        if isinstance(parameter, UninitializedParameter):
            name = plain(name)
            raise ValueError(
                f"{name} is not initialised yet: let the model see a batch before the weights are selected"
            )
    found: list[Candidate] = []
    seen: set[nn.Parameter] = set()
    modules = dict(model.named_modules())
    for path, module in modules.items():
        parent, _, leaf = path.removesuffix("._orig_mod").rpartition(".")
        for candidate in _of_module(plain(path), leaf, module, modules.get(parent, model)):
            parameters = {view.parameter for view in candidate.views}
            if not parameters & seen:
                found.append(candidate)
            seen |= parameters
    return found


def weight_layers(model: nn.Module) -> list[nn.Module]:
    """List the Linear and convolution layers of a model, those of any library that look the same among them.

    Args:
        model: Any module.
    """
    return [module for module in model.modules() if _is_layer(module)]


def plain(name: str) -> str:
    """Return a name without the prefix that `torch.compile` gives.

    Args:
        name: Name of a module or parameter.
    """
    return ".".join(part for part in name.split(".") if part != "_orig_mod")


def _of_module(path: str, leaf: str, module: nn.Module, parent: nn.Module) -> Iterator[Candidate]:
    prefix = f"{path}." if path else ""
    if isinstance(module, nn.MultiheadAttention):
        yield from _of_multihead_attention(prefix, module)
        return
    parametrization = _parametrization(module, "weight") if _is_layer(module) else ""
    if not _is_layer(module) or not (parametrization or _has(module, "weight")):
        return
    kind = "conv" if isinstance(module, (*_CONV, *_TRANSPOSED)) else "linear"
    layout = "transposed_conv" if isinstance(module, _TRANSPOSED) else "in_out" if _is_conv1d(module) else "out_in"
    weight = _stand_in(module, _stored_shape(module), "weight") if parametrization else module.weight
    whole = WeightView(f"{prefix}weight", weight, getattr(module, "groups", 1), layout)
    obstacle = _obstacle(whole)
    siblings = [name for name, child in parent._modules.items() if _is_layer(getattr(child, "_orig_mod", child))]
    parts = parts_of(leaf, siblings, parent, whole.shape) if whole.groups == 1 else []
    if isinstance(parts, str):
        yield Candidate(whole.name, kind, [whole], obstacle or parts, parametrization, attention=True)
        return
    views = _split(whole, parts) or [replace(whole, role=role_of(leaf, siblings))]
    yield Candidate(whole.name, kind, views, obstacle, parametrization)


def _is_conv1d(module: nn.Module) -> bool:
    """Tell Hugging Face's Conv1D, a Linear whose weight is stored `(in, out)`."""
    return class_name(module) == "Conv1D" and hasattr(module, "nf")


def _is_layer(module: nn.Module) -> bool:
    return isinstance(module, (nn.Linear, *_CONV, *_TRANSPOSED)) or _is_conv1d(module)


def _of_multihead_attention(prefix: str, module: nn.MultiheadAttention) -> Iterator[Candidate]:
    width = module.embed_dim
    packed = module.kdim == width and module.vdim == width
    shapes = {"q": (width, width), "k": (width, module.kdim), "v": (width, module.vdim)}
    stored = {"in_proj_weight": (3 * width, width)} if packed else {f"{r}_proj_weight": shapes[r] for r in shapes}
    for name, shape in stored.items():
        parametrization = _parametrization(module, name)
        if not (parametrization or _has(module, name)):
            continue
        weight = _stand_in(module, shape, name) if parametrization else getattr(module, name)
        whole = WeightView(prefix + name, weight, role="" if packed else name[0])
        parts = [(role, index * width, (index + 1) * width) for index, role in enumerate("qkv")]
        views = _split(whole, parts) if packed else [whole]
        yield Candidate(whole.name, "linear", views, _obstacle(whole), parametrization)


def _split(whole: WeightView, parts: list[tuple[str, int, int]]) -> list[WeightView]:
    return [replace(whole, name=f"{whole.name}[{role}]", rows=(first, last), role=role) for role, first, last in parts]


def _obstacle(view: WeightView) -> str:
    if not view.parameter.is_floating_point():  # before frozen: a quantised weight is always frozen too
        return f"quantised or complex ({view.parameter.dtype})"
    if not view.parameter.requires_grad:
        return "frozen (requires_grad=False)"
    if view.parameter.numel() == 0:
        return "empty"
    if view.groups > 1 and view.shape[1] == 1:
        return "depthwise convolution: single columns, no matrices"
    return ""


def _has(module: nn.Module, name: str) -> bool:
    return name in dict(module.named_parameters(recurse=False, remove_duplicate=False))


def _parametrization(module: nn.Module, name: str) -> str:
    """Return what computes a weight, parametrizations of the new kind or hooks of the old one; empty if nothing."""
    if parametrize.is_parametrized(module, name):
        return ", ".join(type(part).__name__.lstrip("_") for part in module.parametrizations[name])
    if _has(module, f"{name}_g") and _has(module, f"{name}_v"):
        return "weight_norm"
    if _has(module, f"{name}_orig"):
        return "pruning" if hasattr(module, f"{name}_mask") else "spectral_norm"
    return ""


def _stand_in(module: nn.Module, shape: tuple[int, ...], name: str) -> nn.Parameter:
    """Return a parameter of the shape of a computed weight, without computing it: that may change buffers."""
    if parametrize.is_parametrized(module, name):
        sources = list(module.parametrizations[name].parameters())
    else:
        own = module.named_parameters(recurse=False)
        sources = [parameter for key, parameter in own if key.startswith(f"{name}_")]
    trained = any(source.requires_grad for source in sources)
    return nn.Parameter(torch.empty(shape, device="meta"), requires_grad=trained)


def _stored_shape(module: nn.Module) -> tuple[int, ...]:
    if isinstance(module, nn.Linear):
        return module.out_features, module.in_features
    if _is_conv1d(module):
        return getattr(module, "nx", module.nf), module.nf
    channels = [module.out_channels, module.in_channels]
    first, second = reversed(channels) if isinstance(module, _TRANSPOSED) else channels
    return first, second // module.groups, *module.kernel_size
