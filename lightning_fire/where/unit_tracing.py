"""Tracing of the units of each layer through one forward pass, up to the weights of the next layers.

A `TorchFunctionMode` sees every operation on real tensors, under any Python control flow. Each tracked tensor has
labels, which tell for each entry the unit it belongs to; an operation that only moves values is applied to the labels.
One not known to keep units separate ends the tracking, with a reason. If a layer runs both with gradients and under
`no_grad`, as in double Q-learning, only the former counts.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode, resolve_name

from lightning_fire.where.layers import plain
from lightning_fire.where.trained import why_not_trained
from lightning_fire.where.unit_layer import Entries, Outgoing, UnitLayer
from lightning_fire.where.weight_layers import CONVOLUTIONS
from lightning_fire.where.weight_view import WeightView

_LAYERS = {F.linear, F.conv1d, F.conv2d, F.conv3d}
# Names of operations, without leading and trailing underscores: `relu_` and `__add__` are `relu` and `add`.
_NONLINEAR = {
    "relu", "relu6", "leaky_relu", "elu", "selu", "celu", "gelu", "silu", "mish", "tanh", "sigmoid", "softplus",
    "hardswish", "hardtanh", "hardsigmoid", "logsigmoid", "softsign",
}  # fmt: skip
_SAME_PLACE = {
    "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout", "contiguous", "clone",
    "to", "type", "float", "half", "bfloat16", "double",
}  # fmt: skip
_WITH_NUMBERS = {
    "mul", "rmul", "imul", "div", "truediv", "itruediv", "true_divide", "add", "radd", "iadd", "sub", "isub",
}  # fmt: skip
_POOLING = {f"{kind}_pool{n}d": n for kind in ("max", "avg", "adaptive_avg", "adaptive_max") for n in (1, 2, 3)}
_REDUCING = {"mean", "sum", "amax", "amin"}
_RESHAPING = {"view", "reshape", "view_as", "reshape_as"}
_MOVING = {"flatten", "squeeze", "unsqueeze", "unflatten", "permute", "transpose"}
_NORMS = {F.batch_norm, F.instance_norm, F.group_norm, F.layer_norm}
_NORM_STARTS = {"weight": 1.0, "bias": 0.0, "running_mean": 0.0, "running_var": 1.0}


@dataclass(frozen=True)
class Track:
    """The layer of the units in a tensor, and labels of its shape: unit u has label u + 1."""

    layer: UnitLayer
    labels: Tensor
    activated: bool = False

    def place(self) -> tuple[int, int]:
        """Return the dimension of the units and the number of adjacent entries of each; (-1, 0) if there is none."""
        labels, size = self.labels, self.layer.size
        for dim in range(labels.ndim):
            block, rest = divmod(labels.shape[dim], size)
            others = [other for other in range(labels.ndim) if other != dim]
            if rest or not block or not labels.numel():
                continue
            low, high = (labels.amin(others), labels.amax(others)) if others else (labels, labels)
            if torch.equal(low, high) and torch.equal(low, _labels(size).repeat_interleave(block)):
                return dim, block
        return -1, 0


def trace(model: nn.Module, forward: Callable[[], Any], trained: Collection[Tensor] | None = None) -> list[UnitLayer]:
    """Trace a forward pass; return the layers that ran, each with the module that observes it or a reason."""
    tracer = _Tracer(model, trained)
    handles = [part.register_forward_pre_hook(tracer.enter_module) for part in model.modules()]
    try:
        with _watching_functions(tracer), torch.compiler.set_stance("force_eager"), tracer:
            forward()
    finally:
        for handle in handles:
            handle.remove()
    return tracer.finish()


class _Tracer(TorchFunctionMode):
    """Sees each operation and keeps the `Track` of each tracked tensor."""

    def __init__(self, model: nn.Module, trained: Collection[Tensor] | None):
        super().__init__()
        self.trained = trained
        # Runs with and without gradients are separate: a layer that runs both ways is traced twice.
        self.layers: dict[tuple[int, bool], UnitLayer] = {}
        self.runs: Counter[UnitLayer] = Counter()
        self.readers: dict[UnitLayer, list[tuple[UnitLayer, int]]] = defaultdict(list)  # next layers, inputs per unit
        self.seen: dict[UnitLayer, list[tuple[nn.Module, Track]]] = defaultdict(
            list
        )  # modules that are given the units
        self.tracks: dict[int, tuple[Track, Tensor]] = {}  # with the tensor: the id of a freed one is reused
        self.calls: Counter[tuple[int, bool]] = Counter()  # by id: the hash of a metric changes with its state
        own = [p for part in model.modules() for _, p in part.named_parameters(recurse=False, remove_duplicate=False)]
        self.shared = {each for each, number in Counter(map(id, own)).items() if number > 1}
        for path, module in model.named_modules():
            weight, name = getattr(module, "weight", None), plain(path)
            if isinstance(module, (nn.Linear, *CONVOLUTIONS)) and isinstance(weight, Parameter):
                view = WeightView(f"{name}.weight", weight, getattr(module, "groups", 1))
                for grad in (True, False):
                    layer = self.layers[id(weight), grad] = UnitLayer(name, module, view, grad)
                    layer.leave_out(self._untrained(weight))
                    if layer.bias is not None:
                        layer.entries.append(Entries(layer.bias, 0.0))
                        layer.leave_out(self._untrained(layer.bias, "its bias is "))

    def _untrained(self, tensor: Tensor, which: str = "") -> str:
        why = why_not_trained(tensor, self.trained) if isinstance(tensor, Parameter) else ""
        return f"{which}{why}" if why else ""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func in _LAYERS:
            self._record_layer(func, dict(zip(("input", "weight"), args, strict=False)) | kwargs, result)
        else:
            self._record(func, args, kwargs, result)
        return result

    def _record(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        name = func.__name__.strip("_")
        if func in _NORMS:
            for tensor in signature(func).bind(*args, **kwargs).arguments.values():
                self.calls[id(tensor), torch.is_grad_enabled()] += 1
        tracked = [thing for thing in _leaves([args, kwargs]) if id(thing) in self.tracks]
        after = next((thing for thing in _leaves(result) if isinstance(thing, Tensor)), None)
        if not tracked or (after is None and name != "setitem"):
            return  # shapes, devices, numbers
        moved = None
        if after is not None and len(tracked) == 1 and args and tracked[0] is args[0]:
            moved = self._moved(func, name, self.tracks[id(args[0])][0], args, kwargs, after)
        if moved is None:
            self.lose_all(tracked, (resolve_name(func) or name).removeprefix("torch."))
            self.tracks.pop(id(after), None)  # changed in place: its track is no longer valid
        elif after is not None:
            self.tracks[id(after)] = moved, after

    def _record_layer(self, func: Any, named: dict[str, Any], result: Tensor) -> None:
        weight, (track, _) = named["weight"], self.tracks.get(id(named["input"]), (None, None))
        layer = self.layers.get((id(weight), torch.is_grad_enabled()))
        if layer is None:
            if track is not None:
                track.layer.leave_out("goes into a weight that is not a parameter of a layer")
            return
        self.runs[layer] += 1
        shape, dim = [1] * result.ndim, result.ndim - 1 if func is F.linear else result.ndim + 1 - weight.ndim
        shape[dim] = -1
        self.tracks[id(result)] = Track(layer, _labels(layer.size).view(shape).expand(result.shape)), result
        kind = "a grouped convolution" if layer.incoming.groups > 1 else ""
        shared = "weight is shared with another module" if id(weight) in self.shared else ""
        layer.leave_out(kind or (shared and f"its {shared}"))
        if track is not None:
            at, block = track.place()
            why = (kind and f", {kind}") or self._untrained(weight, ", which is ") or (shared and f", whose {shared}")
            why = why if at == dim and (func is F.linear or block == 1) else " along another dimension"
            track.layer.leave_out(why and f"goes into {layer.name}{why}")
            self.readers[track.layer].append((layer, block))

    def _moved(self, func: Any, name: str, track: Track, args: Any, named: Any, after: Tensor) -> Track | None:
        """Return the track of the output of an operation; None if it is not known to keep units separate."""
        before, labels = track.labels, track.labels.detach()  # an operation in place changes the shape of the latter
        if name in _NONLINEAR or name in _SAME_PLACE:
            kept = after.shape == before.shape
            return replace(track, activated=track.activated or name in _NONLINEAR) if kept else None
        if name in _WITH_NUMBERS:
            numbers = not any(isinstance(thing, Tensor) for thing in _leaves([args[1:], named]))
            return track if numbers else None
        if func in _NORMS:
            return track if self._record_norm(func, track, signature(func).bind(*args, **named).arguments) else None
        if name in _POOLING:
            if track.place()[0] != before.ndim - 1 - _POOLING[name]:
                return None
            corner: tuple[Any, ...] = (..., *[slice(1)] * _POOLING[name])
            labels = before[corner].expand(after.shape)
        elif name in _REDUCING:
            dims = named.get("dim", args[1] if len(args) > 1 else None)
            if dims is None:
                return None
            keep = after.ndim == before.ndim
            labels, lowest = before.amax(dims, keep), before.amin(dims, keep)
            if not torch.equal(labels, lowest):
                return None
        elif name in _RESHAPING:
            labels = before.reshape(after.shape)
        elif name in _MOVING:
            labels = func(labels, *args[1:], **named)
        else:
            return None
        moved = replace(track, labels=labels)
        return moved if labels.shape == after.shape and moved.place() != (-1, 0) else None

    def _record_norm(self, func: Any, track: Track, named: Any) -> bool:
        """Record the entries of a normalization layer that belong to units; return whether each unit has one."""
        dim = track.labels.ndim - 1 if func is F.layer_norm else 1
        if track.place() != (dim, 1) or len(named.get("normalized_shape", (1,))) != 1:
            return False
        for key, start in _NORM_STARTS.items():
            if isinstance(tensor := named.get(key), Tensor):
                track.layer.entries.append(Entries(tensor, start))
                track.layer.leave_out(self._untrained(tensor, "its normalization layer is "))
        return True

    def lose_all(self, things: Any, name: str) -> None:
        """End the tracking of tensors that went into an unknown operation."""
        for thing in _leaves(things):
            if id(thing) in self.tracks:
                self.tracks[id(thing)][0].layer.leave_out(f"goes into {name}")

    def enter_module(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Record which activations a module receives."""
        self.calls[id(module), torch.is_grad_enabled()] += 1
        if args and id(args[0]) in self.tracks:
            track = self.tracks[id(args[0])][0]
            self.seen[track.layer].append((module, track))

    def finish(self) -> list[UnitLayer]:
        """Return the layers that ran, each with the module that observes it or the reason why it is left out."""
        with_gradients = {layer.name for layer in self.runs if layer.with_gradients}
        layers = [layer for layer in self.runs if layer.with_gradients or layer.name not in with_gradients]
        for layer in layers:
            grad, readers = layer.with_gradients, self.readers[layer]
            if self.runs[layer] > 1:
                layer.reason = f"runs {self.runs[layer]} times in one forward pass"
            again = next((reader.name for reader, _ in readers if self.runs[reader] > 1), "")
            layer.leave_out(again and f"goes into {again}, which runs more than once")
            norm_again = any(self.calls[id(entries.tensor), grad] > 1 for entries in layer.entries)
            layer.leave_out("its normalization layer runs more than once" if norm_again else "")
            # a layer that takes the units in both with and without gradients counts once, as with gradients
            by_name = {reader.name: (reader, block) for reader, block in readers}
            by_name |= {reader.name: (reader, block) for reader, block in readers if reader.with_gradients}
            for reader, block in by_name.values():
                untrained = reader.bias is None or self._untrained(reader.bias)
                layer.outgoing.append(Outgoing(reader.incoming, block, None if untrained else reader.bias))
            layer.leave_out("" if layer.outgoing else "an output")
            seen = [item for item in self.seen[layer] if self.calls[id(item[0]), grad] == 1]
            seen = [item for item in seen if item[1].activated] or seen[-1:]
            layer.leave_out("" if seen else "no module is given its activation")
            for layer.observed, track in seen[:1]:
                layer.dim, layer.observed_block = track.place()
        return layers


@contextmanager
def _watching_functions(tracer: _Tracer) -> Iterator[None]:
    """Patch `autograd.Function.apply`, which is invisible to a mode."""
    original = vars(torch.autograd.Function)["apply"]

    def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
        tracer.lose_all([args, kwargs], cls.__name__)
        return original.__get__(None, cls)(*args, **kwargs)

    torch.autograd.Function.apply = classmethod(apply)
    try:
        yield
    finally:
        torch.autograd.Function.apply = original


def _labels(size: int) -> Tensor:
    return torch.arange(1, size + 1, dtype=torch.float32, device="cpu")


def _leaves(thing: Any) -> Iterator[Any]:
    if isinstance(thing, dict):
        thing = list(thing.values())
    if isinstance(thing, list | tuple):
        for part in thing:
            yield from _leaves(part)
    else:
        yield thing
