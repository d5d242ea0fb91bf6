"""All parameters of a model: the matrices that each holds, or the reason why it holds none."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from torch import nn
from torch.nn import Parameter
from torch.nn.parameter import UninitializedParameter

from lightning_fire._private import is_a
from lightning_fire.where.layers import ComputedWeight, own_parameters, plain
from lightning_fire.where.projections import UnknownRows
from lightning_fire.where.readers import OWN, READERS, gates, takes, views_in
from lightning_fire.where.selection import format_shape, shorten
from lightning_fire.where.weight_layers import LAYERS, whole_weight
from lightning_fire.where.weight_view import Layout, WeightView

Declared = Layout | Literal["gates"]
Layers = Mapping[type[nn.Module] | str, Declared]
Split = Mapping[str, Mapping[str, int]]


@dataclass
class Found:
    """A parameter of a model.

    Attributes:
        names: Its names; first that in the layer whose weight it is.
        parameter: The parameter; of a weight that a parametrization computes a `ComputedWeight`.
        views: Its matrices: one, the parts of a fused weight, or none.
        reason: Why it is not known how to take them; empty if it is.
        is_weight: Whether it is, or may be, the weight of a layer.
    """

    names: list[str]
    parameter: Parameter
    views: Sequence[WeightView]
    reason: str
    is_weight: bool

    @property
    def name(self) -> str:
        """Name in the layer whose weight it is."""
        return self.names[0]

    @property
    def whole(self) -> WeightView:
        """All its parts together."""
        return replace(self.views[0], name=self.name, rows=None, blocks=1, role="")


def parameters_of(model: nn.Module, layers: Layers | None = None, split: Split | None = None) -> list[Found]:
    """List the parameters of a model in module order, tied ones once; for `layers` and `split` see `Weights`."""
    for name, parameter in model.named_parameters():
        if isinstance(parameter, UninitializedParameter):
            raise ValueError(
                f"{plain(name)} is not initialized yet: let the model see a batch before the weights are selected"
            )
    found: dict[Parameter, Found] = {}
    views: dict[Parameter, list[WeightView]] = {}
    seen: set[nn.Module] = set()
    for path, module in model.named_modules(remove_duplicate=False):
        if is_a(module, "OptimizedModule"):  # of torch.compile: the module in it follows
            continue
        for each in _of_module(plain(path), module, None if module in seen else model, layers or {}, views):
            first = found.get(each.parameter, each)
            if first is not each and each.views and not first.views:  # tied with an embedding
                del found[each.parameter]
                each.names += first.names
            elif first is not each:
                first.names += each.names
            found.setdefault(each.parameter, each)
        seen.add(module)
    for key in layers or {}:
        declared = any(_is_class(key, module) for module in seen)
        if not declared and not any(each.views and re.search(str(key), each.name) for each in found.values()):
            raise ValueError(
                f"`layers` has {key.__name__ if isinstance(key, type) else repr(key)}, which matches no parameter"
            )
    for pattern, rows in (split or {}).items():
        matching = [each for each in found.values() if each.views and re.search(pattern, each.name)]
        if not matching:
            names = shorten([each.name for each in found.values() if each.views]) or "none"
            raise ValueError(f"`split` has {pattern!r}, which matches no weight; there are: {names}")
        for each in matching:
            each.views = _split(each.whole, rows)
            each.reason = "" if isinstance(each.reason, UnknownRows) else each.reason
    return list(found.values())


def _of_module(
    path: str, module: nn.Module, model: nn.Module | None, layers: Layers, views: dict[Parameter, list[WeightView]]
) -> Iterator[Found]:
    """Yield the parameters of a module; add their views, unless `model` is None, as for a module seen before."""
    own = own_parameters(module) if model else dict(nn.Module.named_parameters(module, recurse=False))
    reason, whole = "", None
    if model:
        results = (reader(path, module, model) for reader in (*READERS, *OWN))
        read = next((result for result in results if result is not None), ())
        if isinstance(read, str):
            reason, whole = read, whole_weight(path, module)
            read = [whole] if whole else ()
        declared = _declared(path, module, own, layers)
        if whole and (declared or whole.parameter in views):  # the user, or the reader of a module around it, knows it
            reason = ""
        found: dict[Parameter, list[WeightView]] = {}
        for view in read:
            if isinstance(view.parameter, ComputedWeight):  # each call of `own_parameters` makes another one
                view = replace(view, parameter=own[view.name.partition("[")[0].rpartition(".")[2]])
            found.setdefault(view.parameter, []).append(view)
        views |= {parameter: them for parameter, them in found.items() if parameter not in views} | declared
    for leaf, parameter in own.items():
        name = f"{path}.{leaf}".lstrip(".")
        if parameter in views:
            yield Found([name], parameter, views[parameter], reason if whole else "", True)
        else:
            yield Found([name], parameter, (), *_why_no_weight(name, parameter, module, reason))


def _why_no_weight(name: str, parameter: Parameter, module: nn.Module, reason: str) -> tuple[str, bool]:
    """Return why a parameter has no views, with the reason of a reader if any, and whether it may be a weight."""
    if "parametrizations." in name or name.endswith(("weight_g", "weight_v", "weight_orig")):
        return "part of a parametrized weight", False
    if parameter.ndim < 2:
        return "not a matrix", False
    kind, leaf = type(module).__name__, name.rpartition(".")[2]
    several = isinstance(module, nn.ParameterList | nn.ParameterDict)
    named = re.search(r"^W|(^|_)(weights?|kernel|w)(_|\d|$)|proj", leaf) and "bias" not in leaf
    usable = parameter.requires_grad and parameter.is_floating_point() and min(parameter.shape) > 1
    if not usable or not (named or several) or re.search("Embed|Norm", kind):
        return f"{kind}: not the weight of a known layer", False
    layout = "stacked_out_in" if parameter.ndim == 3 else "out_in"
    order = {2: "out, in", 3: "matrices, out, in"}.get(parameter.ndim, "out, in, *kernel")
    argument = f"Weights(layers={{{name!r}: '{layout}'}})" if several else takes(module, layout)
    return reason or f"{kind} is unknown: {argument} takes it as ({order})", True


def _declared(
    path: str, module: nn.Module, own: Mapping[str, Parameter], layers: Layers
) -> dict[Parameter, list[WeightView]]:
    """Return the views of the parameters whose layout the user has declared, by the class or by their names."""
    found: dict[Parameter, list[WeightView]] = {}
    for key, layout in layers.items():
        by_class = _is_class(key, module)
        if layout == "gates":
            if by_class and not isinstance(module, nn.RNNBase | nn.RNNCellBase):
                raise ValueError(f"`layers` has 'gates' for {type(module).__name__}, not a recurrent layer of torch")
            for view in gates(path, module) if by_class else ():
                found.setdefault(view.parameter, []).append(view)
            continue
        for leaf, parameter in own.items():
            name = f"{path}.{leaf}".lstrip(".")
            by_name = isinstance(key, str) and re.search(key, name)
            if "parametrizations." in name or not (by_name or (by_class and parameter.ndim > 1)):
                continue
            if parameter.ndim < (2 if layout in ("out_in", "in_out") else 3):
                raise ValueError(
                    f"`layers` has {layout!r} for {name}, but it is of shape {format_shape(parameter.shape)}"
                )
            groups = len(parameter) if layout.startswith("stacked") else 1
            groups = getattr(module, "groups", 1) if isinstance(module, LAYERS) and parameter.ndim > 2 else groups
            found.setdefault(parameter, [WeightView(name, parameter, groups, layout)])
    return found


def _is_class(key: type[nn.Module] | str, module: nn.Module) -> bool:
    """Return whether a key of `layers` is the class of a module, or its name."""
    return is_a(module, key) if isinstance(key, str) else isinstance(module, key)


def _split(whole: WeightView, rows: Mapping[str, int]) -> list[WeightView]:
    blocks, widths = rows.get("blocks", 1), {name: number for name, number in rows.items() if name != "blocks"}
    given, held = blocks * sum(widths.values()), whole.shape[0] // whole.groups
    if given != held:
        total = " + ".join(map(str, widths.values()))
        raise ValueError(f"`split` gives {whole.name} {blocks} · ({total}) = {given} rows, but it has {held}")
    return views_in(whole, (widths, blocks))
