"""Everything in a model that could be selected: Linear, convolution and attention weights, with their layouts."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils import parametrize

from lightning_fire._private import children_of
from lightning_fire.distributed import local
from lightning_fire.where.fused import Part, classes_of, is_attention_name, parts_of, role_of, split
from lightning_fire.where.low_rank import low_rank_factors
from lightning_fire.where.memory import Place, overlapping, place_of
from lightning_fire.where.trained import UNTRAINED, why_not_trained
from lightning_fire.where.weight_view import Layout, WeightView

_CONV = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
# names of the sizes of Linear layers in other libraries, such as PyTorch Geometric and fairscale: outputs, inputs
_LINEAR_SIZES = (
    *(("out_features", "in_features"), ("out_channels", "in_channels")),
    *(("output_size", "input_size"), ("out_dim", "in_dim")),
)
_GAINS = ("weight_gain", "weight_scale", "scale", "lr_mul", "lr_mult", "lr_multiplier")  # of StyleGAN and others
DEPTHWISE = "depthwise convolution: single columns, no matrices"
ROUTER = "router of experts that are left out"
LOW_RANK = "low-rank factor of an adapter"
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@dataclass
class Candidate:
    """A weight of a model, or a tensor of a file, that could be selected.

    Attributes:
        views: Its parts: one, several for a fused weight, none if it is not the weight of a layer.
        reason: Why it can never be selected; empty if it can.
        note: A remark for the table.
        attention: Whether it holds a query, key or value projection, in a known order or not.
        aliases: Its other names, which patterns match as well.
        parametrization: What computes it, such as `weight_norm`; its views then only have the right shapes.
    """

    name: str
    views: Sequence[WeightView] = ()
    reason: str = ""
    note: str = ""
    attention: bool = False
    aliases: tuple[str, ...] = ()
    parametrization: str = ""

    def __post_init__(self) -> None:
        self.attention = self.attention or any(view.role for view in self.views)

    @property
    def whole(self) -> WeightView:
        """All parts together."""
        return replace(self.views[0], name=self.name, rows=None, blocks=1, role="")


def candidates_of(model: nn.Module) -> list[Candidate]:
    """List the candidates of a model, in module order, tied weights once."""
    for name, parameter in model.named_parameters():
        if isinstance(parameter, UninitializedParameter):
            name = plain(name)
            raise ValueError(
                f"{name} is not initialised yet: let the model see a batch before the weights are selected"
            )
    found: dict[nn.Parameter, Candidate] = {}
    modules = dict(model.named_modules())
    for path, module in modules.items():
        for candidate in _of_module(plain(path), module, *_place_of(path, modules)):
            found.setdefault(candidate.views[0].parameter, candidate)
    named = {candidate.name: parameter for parameter, candidate in found.items()}
    named |= {plain(name): parameter for name, parameter in model.named_parameters() if parameter not in found}
    shared = _sharing_memory(named)
    targets = _target_networks({plain(path): module for path, module in modules.items()})
    shapes = {candidate.name: candidate.whole.shape for candidate in found.values()}
    factors = low_rank_factors(shapes, {name for name, parameter in named.items() if why_not_trained(parameter)})
    routers = _routers(shapes, {name: parameter for name, parameter in named.items() if parameter not in found})
    for candidate in found.values():
        target = "target network" if candidate.name.startswith(targets) else ""
        adapter = LOW_RANK if candidate.name in factors else ROUTER if candidate.name in routers else ""
        if candidate.reason == UNTRAINED and target:
            candidate.reason = target
        candidate.reason = candidate.reason or target or adapter or shared.get(candidate.name, "")
    return list(found.values())


def _routers(layers: Mapping[str, tuple[int, ...]], others: Mapping[str, nn.Parameter]) -> set[str]:
    """Return the layers with one output for each expert beside a stack (experts, out, in), which no layer holds."""
    experts = set()
    for name, parameter in others.items():
        if parameter.ndim == 3 and parameter.shape[0] > 1 and looks_like_a_weight(name):
            module = _parent(name)
            experts |= {(module, parameter.shape[0])}
            if "expert" in module.rpartition(".")[2]:
                experts |= {(_parent(module), parameter.shape[0])}
    routers = {name for name in layers if re.search(r"gat(e|ing)|rout(e|ing)|switch", _parent(name).rpartition(".")[2])}
    return {name for name in routers if (_parent(_parent(name)), layers[name][0]) in experts}


def _parent(name: str) -> str:
    return name.rpartition(".")[0]


def looks_like_a_weight(name: str) -> bool:
    """Return whether a name is like those of weights: `weight_hh_l0`, `W_enc`, `down_proj`."""
    return bool(re.search(r"^W|(^|_)(weights?|kernel|w)(_|\d|$)|proj", name.rpartition(".")[2]))


def is_vector(view: WeightView) -> bool:
    """Return whether a weight has, for each group, one row or one column in total."""
    rows, columns, *kernel = view.shape
    return min(rows // view.groups, columns) == 1 and math.prod(kernel) == 1


def is_matrix(candidate: Candidate) -> bool:
    """Return whether a candidate is a weight matrix, or several in one, taken or not."""
    vectors = all(map(is_vector, candidate.views))  # also without views
    return not vectors and candidate.reason not in (DEPTHWISE, LOW_RANK, "empty")


def matrices_in(candidates: Iterable[Candidate]) -> int:
    """Return the number of weight matrices, the parts of a fused one each."""
    return sum(len(candidate.views) for candidate in filter(is_matrix, candidates))


def mostly_attention(candidates: Sequence[Candidate], in_order: bool = True) -> bool:
    """Return whether a network is a transformer, and not another one that has attention somewhere.

    It is one if queries and keys are more than a quarter of all its matrices (of a transformer block they are a third),
    and the last matrix is not a convolution, as in networks whose output is an image. Matrices of up to three inputs,
    of colors or coordinates, are not counted.

    Args:
        candidates: All candidates, in module order if `in_order`: in files they are in any order.
        in_order: Whether the last one can be told.
    """
    matrices = [candidate for candidate in filter(is_matrix, candidates) if candidate.whole.shape[1] > 3]
    unknown = [c for c in matrices if c.attention and not any(view.role for view in c.views)]  # counted as three
    number = matrices_in(matrices) + 2 * len(unknown)
    found = sum(view.role in ("q", "k") for c in matrices for view in c.views) + 2 * len(unknown)
    return 4 * found > number and not (in_order and matrices[-1].whole.parameter.ndim > 2)


def _sharing_memory(named: Mapping[str, nn.Parameter]) -> dict[str, str]:
    """Return reasons of parameters that overlap others; of several with the same memory the first has none."""
    places = {name: place for name, parameter in named.items() if (place := place_of(local(parameter)))}
    firsts: dict[Place, str] = {}
    for name, place in places.items():
        firsts.setdefault(place, name)
    others = {name: firsts[place] for name, place in places.items() if firsts[place] != name}
    others |= overlapping({name: place for place, name in firsts.items()})
    return {name: f"sharing memory with {other}" for name, other in others.items()}


def _target_networks(modules: Mapping[str, nn.Module]) -> tuple[str, ...]:
    """Return the prefixes of modules such as `q_net_target` or `target_q_net` beside a `q_net` of equal shapes."""
    found = []
    for path, module in modules.items():
        parent, dot, leaf = path.rpartition(".")
        online = modules.get(f"{parent}{dot}{re.sub('^target_|_target$', '', leaf)}", module)
        if online is not module and _shapes(online) == _shapes(module):
            found.append(f"{path}.")
    return tuple(found)


def _shapes(module: nn.Module) -> list[tuple[str, torch.Size]]:
    return [(name, parameter.shape) for name, parameter in module.named_parameters()]


def weight_layers(model: nn.Module) -> list[nn.Module]:
    """List the Linear and convolution layers of a model, including Hugging Face's Conv1D.

    Args:
        model: Any module.
    """
    return [module for module in model.modules() if _is_usual_layer(module)]


def plain(name: str) -> str:
    """Return a name without the prefix that `torch.compile` gives."""
    return ".".join(part for part in name.split(".") if part != "_orig_mod")


def _place_of(path: str, modules: Mapping[str, nn.Module]) -> tuple[str, nn.Module]:
    """Return the name of a layer, and the module that uses it; for `attn.qkv.conv`, `qkv` and that of `attn`.

    A module that wraps a single layer, with norms and activations, stands for it if it has a name of attention.
    """
    parent, _, leaf = path.removesuffix("._orig_mod").rpartition(".")
    wrapper, name = parent, leaf
    while wrapper and not is_attention_name(name):
        single, several = wraps_one_layer(modules[wrapper]), isinstance(modules[wrapper], nn.ModuleList)
        if not (single or several):
            break
        wrapper, _, name = wrapper.removesuffix("._orig_mod").rpartition(".")
        if is_attention_name(name):
            return f"{name} in a list" if several and not single else name, modules.get(wrapper, modules[""])
    return leaf, modules.get(parent, modules[""])


def wraps_one_layer(module: nn.Module) -> bool:
    """Return whether a module is a layer, or holds exactly one, low-rank factors not counted."""
    named = module.named_modules()
    layers = [p for n, p in named if _is_layer(p) and not low_rank_factors({n: ()})]
    return len(layers) == 1 and not isinstance(module, nn.MultiheadAttention)


def _of_module(path: str, module: nn.Module, leaf: str, parent: nn.Module) -> Iterator[Candidate]:
    prefix = f"{path}." if path else ""
    if isinstance(module, nn.MultiheadAttention):
        yield from _of_multihead_attention(prefix, module)
        return
    weight, parametrization = _weight_of(module, "weight", _stored_shape(module)) if _is_layer(module) else (None, "")
    if weight is None:
        return
    layout = _layout_of(module)
    whole = WeightView(f"{prefix}weight", weight, getattr(module, "groups", 1) if weight.ndim > 2 else 1, layout)
    reason = _why_never(whole) or _rescales(module)
    children = children_of(parent).items()
    siblings = [n for n, child in children if child is not None and is_attention_name(n) and wraps_one_layer(child)]
    parts = parts_of(leaf, siblings, parent, whole.shape) if whole.groups == 1 else []
    if isinstance(parts, str):
        yield Candidate(whole.name, [whole], reason or parts, attention=True, parametrization=parametrization)
        return
    views = split(whole, parts) or [replace(whole, role=role_of(leaf, siblings))]
    yield Candidate(whole.name, views, reason, parametrization=parametrization)


def _is_conv1d(module: object) -> bool:
    """Return whether a module is Hugging Face's Conv1D, a Linear whose weight is stored `(in, out)`."""
    return "Conv1D" in classes_of(module) and hasattr(module, "nf")


def _is_layer(module: nn.Module) -> bool:
    return _is_usual_layer(module) or _linear_layout(module) is not None


def _is_usual_layer(module: object) -> bool:
    return isinstance(module, (nn.Linear, *_CONV, *_TRANSPOSED)) or _is_conv1d(module)


def _linear_layout(module: nn.Module) -> Layout | None:
    """Return how a Linear layer of another library stores its weight, by the sizes that it declares; else None."""
    weight = dict(nn.Module.named_parameters(module, recurse=False)).get("weight")
    if weight is None or weight.ndim != 2 or isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return None
    for names in _LINEAR_SIZES:
        sizes = tuple(getattr(module, name, None) for name in names)
        if tuple(weight.shape) in (sizes, sizes[::-1]):
            return "out_in" if tuple(weight.shape) == sizes else "in_out"
    return None


def _layout_of(module: nn.Module) -> Layout:
    if isinstance(module, _TRANSPOSED):
        return "transposed_conv"
    if _is_usual_layer(module):
        return "in_out" if _is_conv1d(module) else "out_in"
    return _linear_layout(module) or "out_in"


def _rescales(module: nn.Module) -> str:
    """Return the reason to leave out a Linear layer of another library that multiplies its weight by a number."""
    gains = [name for name in _GAINS if isinstance(getattr(module, name, None), int | float)]
    changed = [name for name in gains if getattr(module, name) != 1 and not _is_usual_layer(module)]
    return f"scaled in the forward pass, by `{changed[0]}` of {type(module).__name__}" if changed else ""


def _of_multihead_attention(prefix: str, module: nn.MultiheadAttention) -> Iterator[Candidate]:
    width = module.embed_dim
    packed = module.kdim == width and module.vdim == width
    shapes = {"q_proj_weight": (width, width), "k_proj_weight": (width, module.kdim)}
    shapes["v_proj_weight"] = (width, module.vdim)
    for name, shape in {"in_proj_weight": (3 * width, width)}.items() if packed else shapes.items():
        weight, parametrization = _weight_of(module, name, shape)
        if weight is None:
            continue
        whole = WeightView(prefix + name, weight, role="" if packed else name[0])
        parts = [Part(role, index * width, (index + 1) * width) for index, role in enumerate("qkv")]
        views = split(whole, parts) if packed else [whole]
        yield Candidate(whole.name, views, _why_never(whole), parametrization=parametrization)


def _why_never(view: WeightView) -> str:
    if not view.parameter.is_floating_point():  # before frozen: a quantised weight is always frozen too
        return f"quantised or complex ({view.parameter.dtype})"
    if reason := why_not_trained(view.parameter):
        return reason
    if view.parameter.numel() == 0:
        return "empty"
    if view.groups > 1 and view.shape[1] == 1:
        return DEPTHWISE
    return ""


def _weight_of(module: nn.Module, name: str, shape: tuple[int, ...]) -> tuple[nn.Parameter | None, str]:
    """Return a weight, and what computes it: parametrizations, or hooks of the old kind; empty if nothing.

    For a computed weight a parameter of its shape stands in: to compute it may change buffers.
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


def _stored_shape(module: Any) -> tuple[int, ...]:
    if isinstance(module, nn.Linear):
        return module.out_features, module.in_features
    if not _is_usual_layer(module):
        return tuple(module.weight.shape)
    if _is_conv1d(module):
        return getattr(module, "nx", module.nf), module.nf
    channels = [module.out_channels, module.in_channels]
    first, second = reversed(channels) if isinstance(module, _TRANSPOSED) else channels
    return first, second // module.groups, *module.kernel_size


def is_causal_language_model(model: nn.Module) -> bool:
    """Return whether a model predicts each token from those before it.

    That is: a Linear layer has the shape of an embedding, `(vocabulary, width)`, tied to it or not, and some module is
    causal, by an attribute `is_causal` (most of transformers, and `GPT`) or by "Causal" in the name of its class
    (nanoGPT's `CausalSelfAttention`), and none has `is_causal=False`, as attention in an encoder has.
    """
    modules = list(model.modules())
    embeddings = {(m.num_embeddings, m.embedding_dim) for m in modules if isinstance(m, nn.Embedding)}
    outputs = {(m.out_features, m.in_features) for m in modules if isinstance(m, nn.Linear)}
    causal = [getattr(m, "is_causal", "Causal" in type(m).__name__ or None) for m in modules]
    said = any(c is True for c in causal) and not any(c is False for c in causal)
    return said and not embeddings.isdisjoint(outputs)
