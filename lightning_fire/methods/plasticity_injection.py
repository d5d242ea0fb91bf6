"""Plasticity injection (Nikishin et al., NeurIPS 2023)."""

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from inspect import ismethod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lightning_fire._private import BatchNorms, Dropouts, children_of, tree_map
from lightning_fire.contracts import HasSyncTargets, implements
from lightning_fire.methods.base.averages import averages_in, network_of
from lightning_fire.methods.base.change import Change, require_finite
from lightning_fire.methods.base.loop import Loop
from lightning_fire.methods.base.method import EventMethod
from lightning_fire.methods.base.optimizers import OptimizerPolicy
from lightning_fire.methods.base.report import Report
from lightning_fire.methods.initial_values import drawn_values, not_resettable, seed_of_draw, tensors_of
from lightning_fire.where.argument import check_model
from lightning_fire.where.layers import plain
from lightning_fire.where.trained import UNTRAINED, leaves_out, why_not_trained


@dataclass(frozen=True)
class PlasticityInjection(EventMethod):
    """Freezes a head of a model and adds a new one, without changing the output: see `InjectedHead`.

    Parameters of the head that are frozen, or that no optimizer trains, keep their values. Reports `frozen_parameters`,
    the number of parameters in the frozen copies.

    Args:
        head: Name of the head in the model, such as `net.head`; a whole network is fine. It needs a nonlinearity: of
            one linear layer only the optimizer's state, and what weight decay pulls to, would change.
        target: Name of the target network's copy of the head, if there is one. It gets the same new weights, and its
            output does not change. It also needs the frozen copies, which are buffers: `load_state_dict` copies them.
        optimizer_state: Whose optimizer state to drop: `touched` that of the head, `keep` nothing, `all` everything.
        seed: Seed of the new weights, the same on every rank.

    Raises:
        ValueError: If `optimizer_state` is unknown.

    Example:
        >>> head = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
        >>> model, x = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), head), torch.ones(1, 2)
        >>> before = model(x)
        >>> report = PlasticityInjection("2")(model)
        >>> torch.allclose(model(x), before, atol=1e-6), report["frozen_parameters"]
        (True, 162.0)
    """

    name: ClassVar[str] = "plasticity_injection"
    changes_output: ClassVar[bool] = False

    head: str
    target: str | None = None
    optimizer_state: OptimizerPolicy = "touched"
    seed: int = 0

    def prepare(self, model: nn.Module) -> None:
        """Wrap the head, so that a checkpoint of an injected one can be loaded.

        Raises:
            ValueError: As `wrap_heads`, or if the model has a target network whose copy of the head is not named.
        """
        if self.target is None and (copies := frozen_copies_of(model, self.head)):
            raise ValueError(
                f"{type(model).__name__} has a target network of {self.head!r}, which needs the same injection:"
                f" PlasticityInjection(head={self.head!r}, target={copies[0]!r})"
            )
        wrap_heads(model, self._heads)

    def check(self, model: nn.Module, training: Loop) -> Sequence[str]:
        """Also name a head of one linear layer, which learns as before."""
        told = super().check(model, training)
        head = dict(model.named_modules()).get(self.head)
        layer = head.trained if isinstance(head, InjectedHead) else head
        if not isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
            return told
        return [
            *told,
            f"has no effect on the function or gradients of {self.head!r}, one {type(layer).__name__} layer, but on the"
            " optimizer's state and on what weight decay pulls to: name a head with a hidden layer",
        ]

    def table(self, model: nn.Module) -> str:
        """Name the head."""
        (wrapper,) = wrap_heads(copy.deepcopy(model), [self.head])
        return f"{type(self).__name__}(head={self.head!r})\n{wrapper.trained}"

    def plan(self, model: nn.Module, training: Loop) -> Change:
        """Draw the new head, also for averages of the model that contain it."""
        networks = list(filter(None, map(network_of, [*training.averages, *averages_in([model])])))
        for network in networks:  # which may have been copied before the head was wrapped
            if self.head in dict(network.named_modules()):
                wrap_heads(network, [self.head])
        copies = [
            part
            for network in networks
            for path, part in network.named_modules()
            if isinstance(part, InjectedHead) and f".{self.head}".endswith(f".{plain(path)}")
        ]
        return _injection(model, self._heads, seed_of_draw(self.seed, training.event), copies, training)

    @property
    def identity(self) -> str:
        """The name of the head."""
        return repr(self.head)

    @property
    def _heads(self) -> list[str]:
        return [self.head] if self.target is None else [self.head, self.target]


def _injection(
    model: nn.Module, heads: Sequence[str], seed: int, averages: Sequence["InjectedHead"], training: Loop
) -> Change:
    """Plan an injection into a trained head (first) and its copies in a target network and in averages."""
    wrappers = wrap_heads(model, heads)
    trained, stepped = wrappers[0].trained, training.trained(model)
    reasons = {name: why_not_trained(each, stepped) for name, each in trained.named_parameters()}
    kept = {name for name, reason in reasons.items() if reason}
    if len(kept) == len(reasons):
        raise ValueError(f"{heads[0]!r} cannot be re-initialized: it is {', '.join(sorted({*reasons.values()}))}")
    for head, wrapper in zip(heads, wrappers, strict=True):
        require_finite({f"{head}.{name}": tensor for name, tensor in wrapper.trained.named_parameters()})
    wrappers += [average for average in dict.fromkeys(averages) if average not in wrappers]
    injections = [wrapper.prepared_injection(seed, kept) for wrapper in wrappers]
    held = 2 * (len(wrappers[0].frozen) + 1) * sum(tensor.numel() for tensor in tensors_of(trained).values())
    left_out = [f"{heads[0]}.{name}" for name, reason in reasons.items() if reason == UNTRAINED]
    return Change(
        {tensor: new for values, _ in injections for tensor, new in values.items()},
        Report({"frozen_parameters": float(held)}, left_out=leaves_out(left_out)),
        list(trained.parameters()),
        [hold for _, hold in injections],
    )


class InjectedHead(nn.Module):
    """Head whose weights can be re-initialized without changing its output.

    Before the first injection it is just the head. Injection n freezes a copy θₙ of the weights, draws new weights θ′,
    and subtracts the output of a frozen copy θ′ₙ of these: the output is Σₙ (h_θₙ − h_θ′ₙ) + h_θ′. It is unchanged
    while θ′ = θ′ₙ, and gradients flow to the inputs through all copies. The trained parameters remain the same objects;
    frozen copies are buffers. Other attributes are looked up on the head.

    Only `forward` uses the frozen copies, so other methods of the head are not available.

    Args:
        head: Any module, from any inputs to tensors, or to nested lists, tuples and dicts of them.

    Attributes:
        trained: The trained head, θ′.
        frozen: θ₁, θ₂, ….
        taken_away: θ′₁, θ′₂, ….
    """

    def __init__(self, head: nn.Module):
        super().__init__()
        self.trained = head
        self.frozen, self.taken_away = nn.ModuleList(), nn.ModuleList()
        self._injections = 0  # len(self.frozen), the change of which compiled code of torch 2.6 does not notice

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the output of the head plus and minus those of the frozen copies."""
        if self._injections == 0:
            return self.trained(*args, **kwargs)

        def cloned(value: Any) -> Any:
            return value.clone() if isinstance(value, Tensor) else value

        def output_of(head: nn.Module) -> Any:  # each on its own copy of the inputs, as a head may change them in place
            return head(*tree_map(cloned, args), **tree_map(cloned, kwargs))

        *before, last = map(output_of, self.taken_away)
        output = tree_map(torch.sub, output_of(self.trained), last)  # exactly 0 right after an injection
        for minus in before:
            output = tree_map(torch.sub, output, minus)
        for plus in map(output_of, self.frozen):
            output = tree_map(torch.add, output, plus)
        return output

    def inject(self, seed: int) -> None:
        """Freeze a copy of the head and re-initialize the head, without changing the output.

        Args:
            seed: Seed of the new weights; the global random state is not changed.
        """
        values, hold = self.prepared_injection(seed)
        Change(dict(values), then=[hold]).make()

    @torch.no_grad()
    def prepared_injection(
        self, seed: int, kept: Collection[str] = ()
    ) -> tuple[Mapping[Tensor, Tensor], Callable[[], None]]:
        """Plan an injection without changing the module.

        Args:
            seed: Seed of the new weights.
            kept: Names of parameters of the head that are not re-initialized.

        Returns:
            The new values of the tensors of the head, and a function that adds the frozen copies.
        """
        number, drawn = len(self.frozen), drawn_values(self.trained, seed)
        frozen, taken_away = _frozen_copy(self.trained), _frozen_copy(self.trained)
        values = {tensor: drawn[name] for name, tensor in tensors_of(self.trained).items() if name not in kept}
        for name, tensor in tensors_of(taken_away).items():
            if name not in kept:
                tensor.copy_(drawn[name])

        def hold() -> None:
            self.frozen.add_module(str(number), frozen)
            self.taken_away.add_module(str(number), taken_away)
            self._injections = number + 1

        return values, hold

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            value = getattr(super().__getattr__("trained"), name)
        if ismethod(value):
            raise AttributeError(
                f"{name}() of an injected head would leave the frozen copies out: call the head itself"
            )
        return value

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Create as many frozen copies as the checkpoint has. It may also be one of the unwrapped head."""
        plain = self.trained.state_dict()
        if all(prefix + name in state_dict for name in plain):
            for name in plain:
                state_dict[f"{prefix}trained.{name}"] = state_dict.pop(prefix + name)
        if any(key.startswith(prefix) for key in state_dict):
            for name, kind in (("frozen", self.frozen), ("taken_away", self.taken_away)):
                start = f"{prefix}{name}."
                number = len({key[len(start) :].partition(".")[0] for key in state_dict if key.startswith(start)})
                while len(kind) < number:
                    kind.append(_frozen_copy(self.trained))
                del kind[number:]
            self._injections = len(self.frozen)
        super()._load_from_state_dict(state_dict, prefix, *args)


def wrap_heads(module: nn.Module, heads: Sequence[str]) -> list[InjectedHead]:
    """Replace each head by an `InjectedHead`, so that a checkpoint of such a module can be loaded.

    Args:
        module: Any module.
        heads: Names of its heads, such as `net.head`. A head that is already wrapped is kept.

    Returns:
        The wrappers.

    Raises:
        ValueError: If a head does not exist, a layer of it has no `reset_parameters`, or it has BatchNorm or Dropout,
            with which the outputs of two copies would differ.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> [head] = wrap_heads(model, ["2"])
        >>> model[2] is head, head.trained
        (True, Linear(in_features=8, out_features=2, bias=True))
    """
    check_model(module)
    if isinstance(heads, str) or not all(isinstance(name, str) for name in heads):
        raise TypeError(f"`heads` must be a list of names, such as ['head'], got {heads!r}")
    return [_wrapped(module, name) for name in heads]


def frozen_copies_of(module: nn.Module, name: str) -> list[str]:
    """Return the names of frozen submodules built like one of the heads, in a module with target networks."""
    parts = dict(module.named_modules())
    if not implements(module, HasSyncTargets) or name not in parts:
        return []
    shapes = [parameter.shape for parameter in parts[name].parameters()]
    return [
        other
        for other, part in parts.items()
        if part is not parts[name]
        and type(part) is type(parts[name])
        and [parameter.shape for parameter in part.parameters()] == shapes
        and not any(parameter.requires_grad for parameter in part.parameters())
    ]


def _wrapped(module: nn.Module, name: str) -> InjectedHead:
    modules = dict(module.named_modules(remove_duplicate=False))
    if not name or name not in modules:
        names = ", ".join(child for child in modules if child and child.count(".") < 2)
        raise ValueError(
            f"`head` or `target` is {name!r}, which is not a part of {type(module).__name__} (make it in __init__);"
            f" there are: {names or 'none'}"
        )
    head = modules[name]
    if isinstance(head, InjectedHead):
        return head
    if reason := _why_not(module, head):
        raise ValueError(f"{name!r} {reason}")
    wrapper = InjectedHead(head).train(head.training)
    for parent in set(modules.values()) - {*head.modules()}:
        for leaf, child in list(children_of(parent).items()):
            if child is head:  # under all its names
                setattr(parent, leaf, wrapper)
    return wrapper


def _why_not(module: nn.Module, head: nn.Module) -> str:
    """Return why a head cannot be re-initialized without changing the output; empty if it can."""
    if next(head.parameters(), None) is None:
        return f"({type(head).__name__}) has no parameters"
    if stuck := not_resettable(head):
        return f"cannot be re-initialized: {', '.join(stuck)} has parameters and no reset_parameters(); give it one"
    inside = set(head.modules())
    outside = {p for part in module.modules() if part not in inside for p in part.parameters(recurse=False)}
    if outside & set(head.parameters()):
        return "shares a weight with another part of the model, which would change with it"
    if unsteady := [type(part).__name__ for part in head.modules() if _is_random_or_counts(part)]:
        return (
            f"has {unsteady[0]}: two copies with the same weights would have different outputs in training, so"
            " that the output would change at an injection"
        )
    try:
        copy.deepcopy(head)
    except RuntimeError as error:  # raised by torch for computed tensors, as by hooks of weight_norm
        return f"cannot be copied: {error}"
    return ""


def _is_random_or_counts(part: nn.Module) -> bool:
    if isinstance(part, Dropouts):
        return part.p > 0
    if isinstance(part, nn.RNNBase):
        return part.dropout > 0
    return isinstance(part, BatchNorms | nn.RReLU)


def _frozen_copy(head: nn.Module) -> nn.Module:
    """Copy a module with buffers instead of parameters, which optimizers and parameter counts ignore."""
    frozen = copy.deepcopy(head)
    frozen.is_frozen_copy = True  # type: ignore[assignment]  # no method resets it
    for part in frozen.modules():
        for name, parameter in list(part.named_parameters(recurse=False)):
            delattr(part, name)
            part.register_buffer(name, parameter.detach())
    return frozen
