"""Everything in a model that could be selected: Linear, convolution and attention weights, with their layouts."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from torch import nn
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils import parametrize

from lightning_fire.where.attention import parts_of, role_of
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
        parametrization: What computes it, if it is no parameter itself, such as `weight_norm`.
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
    found: list[Candidate] = []
    seen: set[nn.Parameter] = set()
    parents = dict(model.named_modules())
    for path, module in parents.items():
        head, _, leaf = path.rpartition(".")
        for candidate in _of_module(path, leaf, module, parents.get(head, model)):
            parameters = {view.parameter for view in candidate.views}
            if not parameters & seen:
                found.append(candidate)
            seen |= parameters
    return found


def plain(name: str) -> str:
    """Return a name without the prefix that `torch.compile` gives.

    Args:
        name: Name of a module or parameter.
    """
    return name.replace("_orig_mod.", "")


def _of_module(path: str, leaf: str, module: nn.Module, parent: nn.Module) -> Iterator[Candidate]:
    if isinstance(module, nn.MultiheadAttention):
        yield from _of_multihead_attention(path, module)
        return
    transposed_linear = type(module).__name__ == "Conv1D" and hasattr(module, "nf")  # Hugging Face
    if not isinstance(module, (nn.Linear, *_CONV, *_TRANSPOSED)) and not transposed_linear:
        return
    kind = "linear" if isinstance(module, nn.Linear) or transposed_linear else "conv"
    name = plain(f"{path}.weight" if path else "weight")
    if parametrization := _parametrization(module):
        role = role_of(leaf, [child for child, _ in parent.named_children()])
        yield Candidate(
            name,
            kind,
            [WeightView(name, nn.Parameter(module.weight.detach()), role=role)],
            parametrization=parametrization,
        )
        return
    weight = module.weight
    if isinstance(weight, UninitializedParameter):
        raise ValueError(f"{name} is not initialised yet: let the model see a batch before the weights are selected")
    groups = getattr(module, "groups", 1)
    layout = "in_out" if transposed_linear else "transposed_conv" if isinstance(module, _TRANSPOSED) else "out_in"
    whole = WeightView(name, weight, groups, layout)
    obstacle = _obstacle(whole)
    siblings = [child for child, _ in parent.named_children()]
    parts = parts_of(leaf, siblings, parent, whole.shape[0]) if groups == 1 else []
    if isinstance(parts, str):
        yield Candidate(name, kind, [whole], obstacle or parts, attention=True)
    elif parts:
        yield Candidate(name, kind, _split(whole, parts), obstacle)
    else:
        role = role_of(leaf, siblings)
        yield Candidate(name, kind, [WeightView(name, weight, groups, layout, role=role)], obstacle)


def _of_multihead_attention(path: str, module: nn.MultiheadAttention) -> Iterator[Candidate]:
    prefix = plain(f"{path}." if path else "")
    if parametrize.is_parametrized(module):
        return
    if module.in_proj_weight is not None:
        whole = WeightView(f"{prefix}in_proj_weight", module.in_proj_weight)
        width = module.embed_dim
        parts = [(role, index * width, (index + 1) * width) for index, role in enumerate("qkv")]
        yield Candidate(whole.name, "linear", _split(whole, parts), _obstacle(whole))
        return
    for role in "qkv":
        view = WeightView(f"{prefix}{role}_proj_weight", getattr(module, f"{role}_proj_weight"), role=role)
        yield Candidate(view.name, "linear", [view], _obstacle(view))


def _split(whole: WeightView, parts: list[tuple[str, int, int]]) -> list[WeightView]:
    return [
        WeightView(f"{whole.name}[{role}]", whole.parameter, 1, whole.layout, (first, last), role)
        for role, first, last in parts
    ]


def _obstacle(view: WeightView) -> str:
    if not view.parameter.requires_grad:
        return "frozen (requires_grad=False)"
    if not view.parameter.is_floating_point():
        return f"not of a real floating dtype ({view.parameter.dtype})"
    if view.groups > 1 and view.shape[1] == 1:
        return "depthwise convolution: single columns, no matrices"
    return ""


def _parametrization(module: nn.Module) -> str:
    """Return what computes the weight of a layer: parametrizations of the new kind, or the hooks of the old one."""
    if parametrize.is_parametrized(module, "weight"):
        return ", ".join(type(part).__name__.lstrip("_") for part in module.parametrizations["weight"])
    parameters = dict(module.named_parameters(recurse=False))
    if "weight_g" in parameters and "weight_v" in parameters:
        return "weight_norm"
    return "spectral_norm" if "weight_orig" in parameters else ""
