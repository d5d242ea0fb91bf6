"""Weights that are direct parameters of a module: gates of recurrent layers, stacks of experts, bare products."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from torch import nn
from torch.nn import Parameter

from lightning_fire._private import children_of, layers_of_keras, variables_of_keras
from lightning_fire.where.candidate import STALE, Candidate
from lightning_fire.where.fused import (
    NOT_FUSED,
    Parts,
    candidate_in,
    classes_of,
    gate_and_up,
    is_gated,
    parts_of,
    role_of,
)
from lightning_fire.where.usage import Usage, usages
from lightning_fire.where.weight_layers import is_layer, layout_of, stored_shape, why_never
from lightning_fire.where.weight_view import Layout, WeightView

# rows are separate vectors, although products may compare inputs with them
_TABLES = re.compile(r"embed|position|token|prototype|codebook|centroid|slots|memory|quer(y|ies)(_|$)(?!proj|weight)")
RECURRENT = "recurrent: Weights(recurrent=True) takes each gate"
_STORED: dict[tuple[str, int], Layout] = {
    ("out_in", 2): "out_in",
    ("in_out", 2): "in_out",
    ("out_in", 3): "stacked_out_in",
    ("in_out", 3): "stacked_in_out",
}
_GATES = {"LSTM": "ifgo", "LSTMCell": "ifgo", "GRU": "rzn", "GRUCell": "rzn", "RNN": "", "RNNCell": ""}


def recurrent_weights(prefix: str, module: nn.Module, recurrent: bool) -> Iterator[Candidate]:
    """Yield the weights of torch's LSTM, GRU and RNN, gate by gate, with a prefix before their names."""
    gates = next((gates for name, gates in _GATES.items() if name in classes_of(module)), "")
    for name, parameter in nn.Module.named_parameters(module, recurse=False):
        if parameter.ndim != 2:
            continue
        whole = WeightView(prefix + name, parameter)
        projection = name.startswith("weight_hr")  # of the output of an LSTM
        widths = dict.fromkeys(gates, len(parameter) // len(gates)) if gates and not projection else {}
        yield candidate_in((widths, 1), whole, why_never(whole) or ("" if recurrent else RECURRENT))


def bare_weights(prefix: str, module: nn.Module, parent: nn.Module, recurrent: bool) -> Iterator[Candidate]:
    """Yield parameters used as weights, known from the source of the class or from the layers that they replace.

    Recurrent weights named `W_ih` and `W_hh` are split into gates, whose number follows from the size of the state.
    """
    parameters = dict(nn.Module.named_parameters(module, recurse=False))
    groups, used = _convolutions_of_keras(parent), variables_of_keras(parent)
    layouts = _layouts_of(module, parameters, parent) | {name: "in_out" for name in parameters if name in groups}
    names = {name: name.removesuffix("_weight") for name in layouts}
    views = {
        name: WeightView(prefix + name, parameters[name], groups.get(name, 1), layout)
        for name, layout in layouts.items()
    }
    views = {name: stacked(view) for name, view in views.items()}
    for name, whole in views.items():
        widths = {other.shape[1] for other in views.values() if other is not whole}
        reason = STALE if used and whole.parameter not in used else why_never(whole)
        hidden = views[name.replace("ih", "hh")].shape[1] if name.replace("ih", "hh") in views else 0
        if re.search(r"(?<![a-z])(ih|hh)(?![a-z])", name) and hidden and not whole.shape[0] % hidden:
            gates = whole.shape[0] // hidden
            parts: Parts | str = {f"gate {1 + gate}": hidden for gate in range(gates)} if gates > 1 else {}, 1
            reason = reason or ("" if recurrent else RECURRENT)
        elif is_gated(names[name]):
            parts = gate_and_up(whole.shape[0] // whole.groups, module, widths)
        else:
            parts = parts_of(names[name], names.values(), module, whole.shape) if whole.groups == 1 else NOT_FUSED
        yield candidate_in(parts, whole, reason, role_of(names[name], names.values()))


def stacked(view: WeightView) -> WeightView:
    """Return the view with its number of matrices, if it is a stack."""
    return replace(view, groups=len(view.parameter)) if view.layout.startswith("stacked") else view


def _layouts_of(module: nn.Module, parameters: Mapping[str, Parameter], parent: nn.Module) -> dict[str, Layout]:
    found: dict[str, Layout] = {}
    used = usages(type(module)) if any(parameter.ndim > 1 for parameter in parameters.values()) else {}
    if isinstance(module, nn.ParameterList | nn.ParameterDict):  # an item of which its parent uses as a weight
        leaf = next((name for name, child in children_of(parent).items() if child is module), "")
        item = usages(type(parent)).get(leaf)
        used = dict.fromkeys(parameters, Usage(item.layout, False)) if item and item.indexed else {}
    for name, parameter in parameters.items():
        whole = parameter.ndim == 3 or (parameter.ndim == 2 and name in used and not used[name].indexed)
        if name in used and whole and not _TABLES.search(name):
            found[name] = _STORED[used[name].layout, parameter.ndim]
    for name, parameter in parameters.items():  # of a model of Keras, such as `dense/kernel`; gates are not known
        path, _, leaf = name.rpartition("/")
        if path and leaf == "kernel" and parameter.ndim == 2 and f"{path}/recurrent_kernel" not in parameters:
            found[name] = "in_out"
    if "TensorDictParams" in classes_of(module):  # torchrl: one network or, in a stack, one for each agent
        layers = [child for child in children_of(parent).values() if child is not None and child is not module]
        for name, parameter in parameters.items():
            for layer in layers:
                if layout := _of_template(layer, name, parameter):
                    found[name] = layout
    return found


def _convolutions_of_keras(model: nn.Module) -> dict[str, int]:
    """Return the number of groups of each convolution in a Keras model, by the name of its kernel."""
    layers = layers_of_keras(model)
    built = [layer for layer in layers if "BaseConv" in classes_of(layer) and hasattr(layer, "kernel")]
    return {layer.kernel.path: layer.groups for layer in built if hasattr(layer.kernel, "path")}


def _of_template(network: nn.Module, name: str, parameter: Parameter) -> Layout | None:
    """Return the layout of a parameter that replaces the weight of this name in a network, or stacks such weights."""
    path, _, leaf = name.rpartition(".")
    layer = dict(network.named_modules()).get(path)
    if leaf != "weight" or layer is None or not is_layer(layer) or getattr(layer, "groups", 1) != 1:
        return None
    layout, shape = layout_of(layer), stored_shape(layer)
    if parameter.shape == shape:
        return layout
    return "stacked_out_in" if parameter.shape[1:] == shape and layout == "out_in" else None
