"""Readers of modules: the views of its weights, or the reason to leave them out."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import accumulate

from torch import nn

from lightning_fire._private import uncompiled
from lightning_fire.where.layers import own_parameters
from lightning_fire.where.projections import Parts, is_fused, is_projection, parts_of, role_of, unknown_rows
from lightning_fire.where.weight_layers import LAYERS, has_own_forward, weight_layers, whole_weight
from lightning_fire.where.weight_view import Layout, WeightView

Reader = Callable[[str, nn.Module, nn.Module], Sequence[WeightView] | str | None]
"""Function of the path of a module, the module, and the model: the views of its own weights, a reason (one sentence) to
leave them out, or None if it does not know the module."""

_GATES = {nn.LSTM: "ifgo", nn.LSTMCell: "ifgo", nn.GRU: "rzn", nn.GRUCell: "rzn"}


def views_in(whole: WeightView, parts: Parts, role: str = "") -> list[WeightView]:
    """Return the parts of a fused weight; the whole weight, with a role, if there are none."""
    widths, blocks = parts
    named = zip(widths.items(), accumulate(widths.values()), strict=True)
    return [
        replace(whole, name=f"{whole.name}[{part}]", rows=(end - width, end), blocks=blocks, role=part)
        for (part, width), end in named
    ] or [replace(whole, role=role)]


def takes(module: nn.Module, layout: str) -> str:
    """Return the argument of `Weights` that takes a module as it is."""
    return f"Weights(layers={{'{type(module).__name__}': '{layout}'}})"


def multihead_attention(path: str, module: nn.Module, model: nn.Module) -> Sequence[WeightView] | None:
    """Read torch's attention: one weight for queries, keys and values, or three."""
    if not isinstance(module, nn.MultiheadAttention):
        return None
    found: list[WeightView] = []
    for name, parameter in own_parameters(module).items():
        whole = WeightView(f"{path}.{name}".lstrip("."), parameter)
        if name == "in_proj_weight":
            found += views_in(whole, (dict.fromkeys("qkv", module.embed_dim), 1))
        elif name in ("q_proj_weight", "k_proj_weight", "v_proj_weight"):
            found.append(replace(whole, role=name[0]))
    return found


def recurrent(path: str, module: nn.Module, model: nn.Module) -> str | None:
    """Leave out recurrent layers, of which the layout `gates` takes each gate."""
    known = isinstance(module, nn.RNNBase | nn.RNNCellBase)
    return f"recurrent: {takes(module, 'gates')} takes each gate" if known else None


def gates(path: str, module: nn.Module) -> list[WeightView]:
    """Return each gate of a recurrent layer of torch as a matrix; the projection of an LSTM's output has no gates."""
    letters = next((letters for kind, letters in _GATES.items() if isinstance(module, kind)), "")
    found = []
    for name, parameter in own_parameters(module).items():
        if parameter.ndim == 2:
            whole = WeightView(f"{path}.{name}".lstrip("."), parameter)
            several = letters if "weight_hr" not in name else ""
            found += views_in(whole, (dict.fromkeys(several, len(parameter) // len(several or "1")), 1))
    return found


def experts(path: str, module: nn.Module, model: nn.Module) -> Sequence[WeightView] | None:
    """Read stacks of experts of transformers, which declare their layout, and those of Llama 4."""
    llama4 = any(kind.__name__ == "Llama4TextExperts" for kind in type(module).__mro__)
    transposed, halves = getattr(module, "is_transposed", llama4 or None), getattr(module, "is_concatenated", True)
    stacks = {name: stack for name, stack in own_parameters(module).items() if stack.ndim == 3}
    if not isinstance(transposed, bool) or not stacks:
        return None
    layout: Layout = "stacked_in_out" if transposed else "stacked_out_in"
    found = []
    for name, stack in stacks.items():
        width = stack.shape[2 if transposed else 1] // 2
        parts: Parts = {}, 1
        if name == "gate_up_proj":
            parts = ({"gate": width, "up": width}, 1) if halves else ({"gate": 1, "up": 1}, width)
        found += views_in(WeightView(f"{path}.{name}".lstrip("."), stack, len(stack), layout), parts)
    return found


def layer(path: str, module: nn.Module, model: nn.Module) -> Sequence[WeightView] | str | None:
    """Read a Linear or convolution layer: one matrix, or the parts of a fused projection."""
    whole = whole_weight(path, module)
    if whole is None:
        return None
    if has_own_forward(module):
        kind = type(module).__name__
        return f"{kind} has a forward of its own: {takes(module, whole.layout)} takes it as a plain layer"
    leaf, parent = _user_of(path, model)
    if not is_projection(leaf):
        inside = next((part for part in path.split(".")[-4:-1] if is_fused(part)), "")
        return unknown_rows(inside) if inside else [whole]
    siblings = {name for name, child in parent.named_children() if weight_layers(child)}
    parts = parts_of(leaf, siblings, parent, whole.shape) if whole.groups == 1 else ({}, 1)
    return parts if isinstance(parts, str) else views_in(whole, parts, role_of(leaf, siblings))


READERS: list[Reader] = []
"""Readers of your own, tried in order before those of this package. `READERS.append(reader)` adds one."""

OWN: Iterable[Reader] = (multihead_attention, recurrent, experts, layer)


def _user_of(path: str, model: nn.Module) -> tuple[str, nn.Module]:
    """Return the name of a layer and the module that uses it; for a wrapped layer `attn.qkv.conv` `qkv` and `attn`."""
    parent, _, leaf = path.rpartition(".")
    outer, _, name = parent.rpartition(".")
    if parent and not is_projection(leaf) and is_projection(name):
        layers = [part for part in uncompiled(model.get_submodule(parent)).modules() if isinstance(part, LAYERS)]
        if len(layers) == 1:
            return name, uncompiled(model.get_submodule(outer))
    return leaf, uncompiled(model.get_submodule(parent))
