"""Plasticity injection (Nikishin et al., NeurIPS 2023)."""

import copy
from collections.abc import Callable, Mapping, Sequence
from inspect import ismethod
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from lightning_fire.callbacks.base.change import require_finite
from lightning_fire.callbacks.base.event import EventCallback
from lightning_fire.callbacks.base.initial_values import fresh_values, not_redrawable, seed_of_draw, tensors_of
from lightning_fire.callbacks.base.optimizer_state import OptimizerPolicy, check_policy, forget_state
from lightning_fire.when import Schedule


class InjectedHead(nn.Module):
    """A head h that can be given new plasticity without a change of what it says.

    Before the first injection it is the head alone. Injection n freezes a copy θₙ of its weights and draws new ones θ′,
    of which another frozen copy θ′ₙ is taken away again: the output is Σₙ (h_θₙ − h_θ′ₙ) + h_θ′, the same as before as
    long as θ′ = θ′ₙ, and gradients flow to the inputs through all of them. The trained parameters are the same objects
    throughout; frozen copies are buffers. Attributes that it lacks are those of the head.

    Only calls go through the frozen copies: methods of the head other than `forward` are not to be had.

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
        """Return what the head returns, with the frozen copies added and taken away."""
        if self._injections == 0:
            return self.trained(*args, **kwargs)

        def said_by(head: nn.Module) -> Any:  # each on inputs of its own, as a head may change them in place
            return head(*tree_map(_cloned, args), **tree_map(_cloned, kwargs))

        *before, last = map(said_by, self.taken_away)
        output = tree_map(torch.sub, said_by(self.trained), last)  # exactly 0 right after an injection
        for minus in before:
            output = tree_map(torch.sub, output, minus)
        for plus in map(said_by, self.frozen):
            output = tree_map(torch.add, output, plus)
        return output

    def inject(self, seed: int) -> None:
        """Freeze the head and begin anew, with the same output.

        Args:
            seed: Seed of the new weights; the global random state is left alone.
        """
        self.prepared_injection(seed)()

    def prepared_injection(self, seed: int) -> Callable[[], None]:
        """Prepare an injection, and change nothing yet.

        Args:
            seed: See `inject`.

        Returns:
            Makes the injection. A second call has the same result.
        """
        number, drawn = len(self.frozen), fresh_values(self.trained, seed)
        frozen, taken_away = _frozen_copy(self.trained), _frozen_copy(self.trained)

        @torch.no_grad()
        def inject() -> None:
            for head in (taken_away, self.trained):
                for name, tensor in tensors_of(head).items():
                    tensor.copy_(drawn[name])
            self.frozen.add_module(str(number), frozen)
            self.taken_away.add_module(str(number), taken_away)
            self._injections = number + 1

        return inject

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
        """Have as many frozen copies as the checkpoint, which may be of the head before it was wrapped."""
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
    """Put an `InjectedHead` in the place of each head, so that a checkpoint of such a module can be loaded.

    Args:
        module: Any module.
        heads: Names of its heads, such as `net.head`. One that is wrapped already stays.

    Returns:
        The wrappers.

    Raises:
        ValueError: If there is no such head, a layer of it cannot be drawn anew, or it has BatchNorm or Dropout, whose
            two copies would not say the same.
    """
    return [_wrapped(module, name) for name in heads]


class PlasticityInjection(EventCallback):
    """Gives a head new plasticity without a change of its output: see `InjectedHead`.

    Logs `plasticity_injection/event` and `plasticity_injection/frozen_parameters`, the numbers that the head holds
    beside its trained ones.

    Args:
        head: Name of the head in the LightningModule, such as `net.head`; a whole network is fine.
        when: Schedule, or several of which any may be due. Default: `AtNewData()`; paper: `AtFraction(0.5)`.
        target: Name of the target network's copy of the head, if there is one. It gets the same new weights, and its
            output does not change either. It then needs the frozen copies of the head, too, as `load_state_dict` brings
            them: they are buffers.
        optimizer: What becomes of optimizer state: `"touched"` forgets that of the head, `"keep"` nothing, `"all"`
            everything.
        seed: Seed of the new weights, the same on every rank.
        name: Prefix of the logged keys in the place of `plasticity_injection`.

    Raises:
        ValueError: If `optimizer` is unknown; when training starts, as `wrap_heads` does; at an event, if a parameter
            of the head has a NaN or Inf, which its frozen copy would say for ever: nothing has been changed then.
    """

    replaces_weights = False
    name = "plasticity_injection"

    def __init__(
        self,
        head: str,
        when: Schedule | Sequence[Schedule] | None = None,
        target: str | None = None,
        optimizer: OptimizerPolicy = "touched",
        seed: int = 0,
        name: str | None = None,
    ):
        super().__init__(when, name)
        check_policy(optimizer)
        self.head, self.target, self.optimizer, self.seed = head, target, optimizer, seed

    def describe(self) -> str:
        return f"{self.when!r}, {self.head!r}"

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if self.target is None and (copies := _frozen_twins(pl_module, self.head)):
            raise MisconfigurationException(
                f"{type(pl_module).__name__} has a target network of {self.head!r}, which needs the same injection:"
                f" PlasticityInjection(head={self.head!r}, target={copies[0]!r})"
            )
        wrap_heads(pl_module, self._heads)  # before the optimizers are made and a checkpoint is loaded

    def act(self, trainer: Trainer, pl_module: LightningModule) -> Mapping[str, float]:
        wrappers = wrap_heads(pl_module, self._heads)
        for head, wrapper in zip(self._heads, wrappers, strict=True):
            require_finite({f"{head}.{name}": tensor for name, tensor in wrapper.trained.named_parameters()})
        injections = [wrapper.prepared_injection(seed_of_draw(self.seed, self.num_events)) for wrapper in wrappers]

        def change() -> None:
            for inject in injections:
                inject()
            forget_state(self.optimizer, trainer.optimizers, wrappers[0].trained.parameters())

        self.carry_out(pl_module, change)
        held = [*wrappers[0].frozen.buffers(), *wrappers[0].taken_away.buffers()]
        return {f"{self.name}/frozen_parameters": float(sum(tensor.numel() for tensor in held))}

    def show_selection(self, pl_module: LightningModule) -> str:
        (wrapper,) = wrap_heads(copy.deepcopy(pl_module), [self.head])
        return f"{type(self).__name__}(head={self.head!r})\n{wrapper.trained}"

    @property
    def _heads(self) -> list[str]:
        return [self.head] if self.target is None else [self.head, self.target]


def _frozen_twins(module: nn.Module, name: str) -> list[str]:
    """Return the names of parts of a module with target networks that are frozen, and built as one of its heads."""
    parts = dict(module.named_modules())
    if not callable(getattr(module, "sync_targets", None)) or name not in parts:
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
            f"`head` or `target` is {name!r}, which is no part of {type(module).__name__} (make it in __init__); there"
            f" are: {names or 'none'}"
        )
    head = modules[name]
    if isinstance(head, InjectedHead):
        return head
    if reason := _obstacle(module, head):
        raise ValueError(f"{name!r} {reason}")
    wrapper = InjectedHead(head).train(head.training)
    for parent in set(modules.values()) - {*head.modules()}:
        for leaf, child in list(parent._modules.items()):
            if child is head:  # under all its names
                setattr(parent, leaf, wrapper)
    return wrapper


def _obstacle(module: nn.Module, head: nn.Module) -> str:
    """Say why a head cannot be given new weights without a change of what the model says; empty if it can."""
    if next(head.parameters(), None) is None:
        return f"({type(head).__name__}) has no parameters"
    if stuck := not_redrawable(head):
        return f"cannot be drawn anew: {', '.join(stuck)} has parameters and no reset_parameters(); give it one"
    inside = set(head.modules())
    outside = {p for part in module.modules() if part not in inside for p in part._parameters.values() if p is not None}
    if outside & set(head.parameters()):
        return "shares a weight with another part of the model, which would change with it"
    unsteady = [type(part).__name__ for part in head.modules() if _draws_or_counts(part)]
    if unsteady:
        return (
            f"has {unsteady[0]}: two copies with the same weights would not say the same in training, so that the"
            " output would change at an injection"
        )
    try:
        copy.deepcopy(head)
    except RuntimeError as error:  # torch: tensors that are computed, as by hooks of weight_norm
        return f"cannot be copied: {error}"
    return ""


def _draws_or_counts(part: nn.Module) -> bool:
    if isinstance(part, nn.modules.dropout._DropoutNd):
        return part.p > 0
    if isinstance(part, nn.RNNBase):
        return part.dropout > 0
    return isinstance(part, nn.modules.batchnorm._BatchNorm | nn.RReLU)


def _cloned(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _frozen_copy(head: nn.Module) -> nn.Module:
    """Copy a module with buffers in the place of its parameters: no optimizer and no count of parameters sees them."""
    frozen = copy.deepcopy(head)
    frozen.is_frozen_copy = True  # not to be drawn anew or put back by any method
    for part in frozen.modules():
        for name, parameter in list(part.named_parameters(recurse=False)):
            del part._parameters[name]
            part.register_buffer(name, parameter.detach())
    return frozen
