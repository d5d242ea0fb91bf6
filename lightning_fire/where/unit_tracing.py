"""Tracing of the units of each layer through one forward pass, up to the weights of the next layers.

A `TorchFunctionMode` sees every operation on real tensors, under any Python control flow. A tensor is tracked while one
of its dimensions indexes the units of one layer; an operation not known to preserve this ends the tracking, with a
reason. If a layer runs both with gradients and under `no_grad`, as in double Q-learning, only the former counts.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode, resolve_name

from lightning_fire.where.layers import plain
from lightning_fire.where.trained import why_not_trained
from lightning_fire.where.weight_view import WeightView

Args = tuple[Any, ...]
Named = dict[str, Any]

_CONV = {F.conv1d, F.conv2d, F.conv3d}
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
_RESHAPING = {"view", "reshape", "flatten", "squeeze", "unsqueeze", "unflatten", "view_as", "reshape_as"}
_REDUCING = {"mean", "sum", "amax", "amin"}
_NORMS = {
    "batch_norm": ("input", "running_mean", "running_var", "weight", "bias"),
    "instance_norm": ("input", "running_mean", "running_var", "weight", "bias"),
    "group_norm": ("input", "num_groups", "weight", "bias"),
    "layer_norm": ("input", "normalized_shape", "weight", "bias"),
}
_NORM_STARTS = {"weight": 1.0, "bias": 0.0, "running_mean": 0.0, "running_var": 1.0}


@dataclass(eq=False)
class Producer:
    """A layer whose units are traced.

    Attributes:
        entries: Its bias and tensors of normalization layers, with one entry per unit.
        consumers: The next layers, with the number of inputs per unit.
        observed: Where the activation can be watched: module, dimension, and number of entries per unit.
        reason: Why the units cannot be reset; empty if they can.
        runs: Number of runs of the layer; `with_gradients`: whether these had gradients.
    """

    name: str
    layer: nn.Module
    view: WeightView
    entries: list[tuple[Tensor, float]] = field(default_factory=list)
    consumers: list[tuple["Producer", int]] = field(default_factory=list)
    observed: tuple[nn.Module, int, int] | None = None
    reason: str = ""
    runs: int = 0
    with_gradients: bool = True

    @property
    def bias(self) -> Parameter | None:
        """The bias of the layer, None without one."""
        return self.layer.bias if isinstance(self.layer.bias, Parameter) else None


@dataclass(frozen=True)
class Track:
    """Units in a tensor: dimension `dim` indexes those of `producer`, `block` adjacent entries each."""

    producer: Producer
    dim: int
    block: int = 1
    activated: bool = False


def trace(module: nn.Module, forward: Callable[[], Any]) -> list[Producer]:
    """Trace a forward pass."""
    tracer = _Tracer(module)
    handles = [part.register_forward_pre_hook(tracer.enter_module) for part in module.modules()]
    try:
        with _watching_functions(tracer), torch.compiler.set_stance("force_eager"), tracer:
            forward()
    finally:
        for handle in handles:
            handle.remove()
    return tracer.finish()


class _Tracer(TorchFunctionMode):
    """Sees each operation and keeps the `Track` of each tracked tensor."""

    def __init__(self, module: nn.Module):
        super().__init__()
        # Runs with and without gradients are separate: a layer that ran both ways has two producers.
        self.producers: dict[tuple[Parameter, bool], Producer] = {}
        self._shared = _shared_by_modules(module)
        self._known = {
            (producer.view.parameter, grad): producer for grad in (True, False) for producer in _layers_of(module, grad)
        }
        self._tracks: dict[int, Track] = {}
        self._alive: list[Tensor] = []  # the id of a freed tensor is reused
        self._calls: Counter[tuple[int, bool]] = Counter()  # by id: the hash of a metric changes with its state
        self._sightings: dict[Producer, list[tuple[nn.Module, Track]]] = {}
        self._norm_uses: Counter[tuple[int, bool]] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Args = (), kwargs: Named | None = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        self._record(func, args, kwargs, result)
        return result

    def enter_module(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Record which activations a module receives."""
        self._calls[id(module), torch.is_grad_enabled()] += 1
        if args and (track := self._track(args[0])) is not None:
            self._sightings.setdefault(track.producer, []).append((module, track))

    def finish(self) -> list[Producer]:
        """Return the layers, each with the module that observes it or the reason why its units cannot be reset."""
        for producer in self.producers.values():
            grad = producer.with_gradients
            seen = [item for item in self._sightings.get(producer, []) if self._calls[id(item[0]), grad] == 1]
            seen = [item for item in seen if item[1].activated] or seen[-1:]
            if seen:
                observed, track = seen[0]
                producer.observed = (observed, track.dim, track.block)
            if producer.runs > 1:
                producer.reason = f"runs {producer.runs} times in one forward pass"
            shared = [consumer.name for consumer, _ in producer.consumers if consumer.runs > 1]
            if shared and not producer.reason:
                producer.reason = f"goes into {shared[0]}, which runs more than once"
            # a layer that takes the units in both with and without gradients counts once, as with gradients
            by_weight = {consumer.view.parameter: (consumer, block) for consumer, block in producer.consumers}
            by_weight |= {c.view.parameter: (c, block) for c, block in producer.consumers if c.with_gradients}
            producer.consumers = list(by_weight.values())
            if any(self._norm_uses[id(tensor), grad] > 1 for tensor, _ in producer.entries) and not producer.reason:
                producer.reason = "its normalization layer runs more than once"
            if not producer.consumers and not producer.reason:
                producer.reason = "an output"
            if not producer.reason and producer.observed is None:
                producer.reason = "no module is given its activation"
        found = self.producers
        return [producer for (weight, grad), producer in found.items() if grad or (weight, True) not in found]

    def _track(self, thing: Any) -> Track | None:
        return self._tracks.get(id(thing)) if isinstance(thing, Tensor) else None

    def _follow(self, tensor: Any, track: Track) -> None:
        self._tracks[id(tensor)] = track
        self._alive.append(tensor)

    def lose_all(self, things: Any, name: str) -> None:
        """End the tracking of tensors that went into an unknown operation."""
        for thing in _leaves(things):
            if (track := self._track(thing)) is not None:
                self._block(track, f"goes into {name}")

    def _record(self, func: Any, args: Args, kwargs: Named, result: Any) -> None:
        if func is F.linear or func in _CONV:
            self._record_layer(func, args, kwargs, result)
            return
        name = func.__name__.strip("_")
        if name in _NORMS:
            for tensor in (dict(zip(_NORMS[name], args, strict=False)) | kwargs).values():
                self._norm_uses[id(tensor), torch.is_grad_enabled()] += 1
        tracked = [thing for thing in _leaves((args, kwargs)) if self._track(thing) is not None]
        results = [thing for thing in _leaves(result) if isinstance(thing, Tensor)]
        if not tracked or (not results and name != "setitem"):
            return  # shapes, devices, numbers
        moved = None
        if results and len(tracked) == 1 and tracked[0] is args[0]:
            moved = self._moved(name, self._tracks[id(args[0])], args[0], results[0], args, kwargs)
        if moved is None:
            full = resolve_name(func) or name
            self.lose_all(tracked, full.removeprefix("torch."))
            for thing in results:  # changed in place: its track is no longer valid
                self._tracks.pop(id(thing), None)
        else:
            self._follow(results[0], moved)

    def _record_layer(self, func: Any, args: Args, kwargs: Named, result: Tensor) -> None:
        named = dict(zip(("input", "weight"), args, strict=False)) | kwargs
        source, weight = named["input"], named["weight"]
        key = weight, torch.is_grad_enabled()
        producer = self._known.get(key) if isinstance(weight, Parameter) else None
        track = self._track(source)
        if producer is None:
            if track is not None:
                self._block(track, "goes into a weight that is not a parameter of a layer")
            return
        dim = result.ndim - 1 if func is F.linear else result.ndim + 1 - weight.ndim
        producer.runs += 1
        if id(weight) in self._shared:
            producer.reason = "its weight is shared with another module"
        self.producers.setdefault(key, producer)
        self._follow(result, Track(producer, dim))
        if producer.view.groups > 1:
            producer.reason = "a grouped convolution"
        if track is not None:
            if track.dim != dim or (func in _CONV and track.block != 1):
                self._block(track, f"goes into {producer.name} along another dimension")
            elif producer.view.groups > 1:
                self._block(track, f"goes into {producer.name}, a grouped convolution")
            elif reason := why_not_trained(weight):
                self._block(track, f"goes into {producer.name}, which is {reason}")
            elif id(weight) in self._shared:
                self._block(track, f"goes into {producer.name}, whose weight is shared with another module")
            else:
                track.producer.consumers.append((producer, track.block))

    def _moved(self, name: str, track: Track, before: Tensor, after: Tensor, args: Args, kwargs: Named) -> Track | None:
        """Return the track of the output of an operation; None if it is not known to keep units separate."""
        if name in _NONLINEAR or name in _SAME_PLACE:
            kept = after.shape == before.shape
            return replace(track, activated=track.activated or name in _NONLINEAR) if kept else None
        if name in _WITH_NUMBERS:
            numbers = not any(isinstance(thing, Tensor) for thing in _leaves((args[1:], kwargs)))
            return track if numbers else None
        if name in _POOLING:
            return track if track.dim == before.ndim - 1 - _POOLING[name] else None
        if name in _RESHAPING:
            return _reshaped(track, before.shape, after.shape)
        if name in _REDUCING:
            return _reduced(track, before, after, args, kwargs)
        if name in ("permute", "transpose"):
            return _permuted(track, name, before, args, kwargs)
        if name in _NORMS:
            return track if self._record_norm(name, track, before, args, kwargs) else None
        return None

    def _block(self, track: Track, reason: str) -> None:
        track.producer.reason = track.producer.reason or reason

    def _record_norm(self, name: str, track: Track, before: Tensor, args: Args, kwargs: Named) -> bool:
        """Record the entries of a normalization layer that belong to units; return whether each unit has one."""
        named = dict(zip(_NORMS[name], args, strict=False)) | kwargs
        dim = before.ndim - 1 if name == "layer_norm" else 1
        if track.dim != dim or track.block != 1 or len(named.get("normalized_shape", (1,))) != 1:
            return False
        found = [(named[key], start) for key, start in _NORM_STARTS.items() if isinstance(named.get(key), Tensor)]
        reasons = [why_not_trained(tensor) for tensor, _ in found if isinstance(tensor, Parameter)]
        if any(reasons):
            self._block(track, f"its normalization layer is {next(filter(None, reasons))}")
        track.producer.entries.extend(found)
        return True


@contextmanager
def _watching_functions(tracer: _Tracer) -> Iterator[None]:
    """Patch `autograd.Function.apply`, which is invisible to a mode."""
    original = vars(torch.autograd.Function)["apply"]

    def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
        tracer.lose_all((args, kwargs), cls.__name__)
        return original.__get__(None, cls)(*args, **kwargs)

    torch.autograd.Function.apply = classmethod(apply)
    try:
        yield
    finally:
        torch.autograd.Function.apply = original


def _layers_of(module: nn.Module, with_gradients: bool) -> Iterator[Producer]:
    for name, layer in module.named_modules():
        weight = getattr(layer, "weight", None)
        if isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d) and isinstance(weight, Parameter):
            name = plain(name)
            view = WeightView(f"{name}.weight", weight, getattr(layer, "groups", 1))
            producer = Producer(name, layer, view, reason=why_not_trained(weight), with_gradients=with_gradients)
            if producer.bias is not None and not producer.reason and (reason := why_not_trained(producer.bias)):
                producer.reason = f"its bias is {reason}"
            producer.entries = [] if producer.bias is None else [(producer.bias, 0.0)]
            yield producer


def _shared_by_modules(module: nn.Module) -> set[int]:
    """Return the ids of parameters shared by several modules, such as an embedding and a tied layer."""
    owned = Counter(
        id(parameter)
        for part in module.modules()
        for _, parameter in part.named_parameters(recurse=False, remove_duplicate=False)
    )
    return {key for key, number in owned.items() if number > 1}


def _reshaped(track: Track, before: torch.Size, after: torch.Size) -> Track | None:
    """Find the dimension that indexes units after a reshape, possibly merged with the dimensions after it."""
    left, right = math.prod(before[: track.dim]), math.prod(before[track.dim + 1 :])
    for dim in range(len(after)):
        behind = math.prod(after[dim + 1 :])
        if math.prod(after[:dim]) == left and behind and right % behind == 0:
            merged = right // behind
            if after[dim] == before[track.dim] * merged:
                return replace(track, dim=dim, block=track.block * merged)
    return None


def _reduced(track: Track, before: Tensor, after: Tensor, args: Args, kwargs: Named) -> Track | None:
    dims = kwargs.get("dim", args[1] if len(args) > 1 else None)
    if dims is None:
        return None
    dims = {dim % before.ndim for dim in ([dims] if isinstance(dims, int) else dims)}
    if track.dim in dims:
        return None
    gone = sum(dim < track.dim for dim in dims) if after.ndim < before.ndim else 0
    return replace(track, dim=track.dim - gone)


def _permuted(track: Track, name: str, before: Tensor, args: Args, kwargs: Named) -> Track | None:
    given = [*args[1:], *kwargs.values()]
    order = list(given[0]) if given and not isinstance(given[0], int) else given
    order = [dim % before.ndim for dim in order]
    if name == "transpose":
        swapped = {order[0]: order[1], order[1]: order[0]}
        return replace(track, dim=swapped.get(track.dim, track.dim))
    return replace(track, dim=order.index(track.dim))


def _leaves(thing: Any) -> Iterator[Any]:
    if isinstance(thing, dict):
        thing = list(thing.values())
    if isinstance(thing, list | tuple):
        for part in thing:
            yield from _leaves(part)
    else:
        yield thing
