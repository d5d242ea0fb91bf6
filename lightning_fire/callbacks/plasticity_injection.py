"""Plasticity injection (Nikishin et al., NeurIPS 2023)."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils._pytree import tree_map

from lightning_fire.callbacks.base import EventCallback
from lightning_fire.callbacks.initial_values import fresh_values, not_redrawable, tensors_of
from lightning_fire.callbacks.optimizer_state import OptimizerPolicy, check_policy, forget_state
from lightning_fire.when import Schedule

_DIFFERS_FROM_CALL_TO_CALL = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)


class InjectedHead(nn.Module):
    """A head h that can be given new plasticity without a change of what it says.

    Before the first injection it is the head alone. Injection n freezes a copy θₙ of its weights and draws new ones θ′,
    of which another frozen copy θ′ₙ is taken away again: the output is Σₙ (h_θₙ − h_θ′ₙ) + h_θ′, the same as before as
    long as θ′ = θ′ₙ, and gradients flow to the inputs through all of them. The trained parameters are the same objects
    throughout; frozen copies are buffers. Attributes that it lacks are those of the head.

    Args:
        head: Any module, from any inputs to tensors, or to nested lists, tuples and dicts of them.

    Attributes:
        head: The trained head, θ′.
        frozen: θ₁, θ₂, ….
        taken_away: θ′₁, θ′₂, ….
    """

    def __init__(self, head: nn.Module):
        super().__init__()
        self.head = head
        self.frozen, self.taken_away = nn.ModuleList(), nn.ModuleList()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the head returns, with the frozen copies added and taken away."""
        output = self.head(*args, **kwargs)
        if not self.frozen:
            return output
        *before, last = [minus(*args, **kwargs) for minus in self.taken_away]
        output = tree_map(torch.sub, output, last)  # exactly 0 right after an injection
        for minus in before:
            output = tree_map(torch.sub, output, minus)
        for plus in self.frozen:
            output = tree_map(torch.add, output, plus(*args, **kwargs))
        return output

    @torch.no_grad()
    def inject(self, seed: int) -> None:
        """Freeze the head and begin anew, with the same output.

        Args:
            seed: Seed of the new weights; the global random state is left alone.
        """
        self.frozen.append(_frozen_copy(self.head))
        drawn = fresh_values(self.head, seed)
        for name, tensor in tensors_of(self.head).items():
            tensor.copy_(drawn[name])
        self.taken_away.append(_frozen_copy(self.head))

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("head"), name)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Have as many frozen copies as the checkpoint, which may be of the head before it was wrapped."""
        plain = self.head.state_dict()
        if all(prefix + name in state_dict for name in plain):
            for name in plain:
                state_dict[f"{prefix}head.{name}"] = state_dict.pop(prefix + name)
        for kind in (self.frozen, self.taken_away):
            start = f"{prefix}{'frozen' if kind is self.frozen else 'taken_away'}."
            number = len({key[len(start) :].partition(".")[0] for key in state_dict if key.startswith(start)})
            while len(kind) < number:
                kind.append(_frozen_copy(self.head))
            del kind[number:]
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
        ValueError: If `optimizer` is unknown; when training starts, as `wrap_heads` does.
    """

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
        wrap_heads(pl_module, self._heads)  # before the optimizers are made and a checkpoint is loaded

    def act(self, trainer: Trainer, pl_module: LightningModule) -> Mapping[str, float]:
        wrappers = wrap_heads(pl_module, self._heads)
        for wrapper in wrappers:
            wrapper.inject(self.seed + 1_000_003 * self.num_events)
        forget_state(self.optimizer, trainer.optimizers, wrappers[0].head.parameters())
        held = [*wrappers[0].frozen.buffers(), *wrappers[0].taken_away.buffers()]
        return {f"{self.name}/frozen_parameters": float(sum(tensor.numel() for tensor in held))}

    def show_selection(self, pl_module: LightningModule) -> str:
        (wrapper,) = wrap_heads(copy.deepcopy(pl_module), [self.head])
        return f"{type(self).__name__}(head={self.head!r})\n{wrapper.head}"

    @property
    def _heads(self) -> list[str]:
        return [self.head] if self.target is None else [self.head, self.target]


def _wrapped(module: nn.Module, name: str) -> InjectedHead:
    modules = dict(module.named_modules())
    if not name or name not in modules:
        names = ", ".join(child for child in modules if child and child.count(".") < 2)
        raise ValueError(
            f"`head` or `target` is {name!r}, which is no part of {type(module).__name__} (make it in __init__); there"
            f" are: {names or 'none'}"
        )
    head = modules[name]
    if isinstance(head, InjectedHead):
        return head
    if stuck := not_redrawable(head):
        raise ValueError(
            f"{name!r} cannot be drawn anew: {', '.join(stuck)} has parameters and no reset_parameters(); give it one"
        )
    unsteady = [type(part).__name__ for part in head.modules() if isinstance(part, _DIFFERS_FROM_CALL_TO_CALL)]
    if unsteady:
        raise ValueError(
            f"{name!r} has {unsteady[0]}: two copies with the same weights would not say the same in training, so that"
            " the output would change at an injection"
        )
    parent, _, leaf = name.rpartition(".")
    wrapper = InjectedHead(head).train(head.training)
    setattr(modules[parent], leaf, wrapper)
    return wrapper


def _frozen_copy(head: nn.Module) -> nn.Module:
    """Copy a module with buffers in the place of its parameters: no optimizer and no count of parameters sees them."""
    frozen = copy.deepcopy(head)
    for part in frozen.modules():
        for name, parameter in list(part.named_parameters(recurse=False)):
            del part._parameters[name]
            part.register_buffer(name, parameter.detach())
    return frozen
