"""Weights and optimizer state of an earlier training, loaded into a model that continues from them."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_fire.checkpoints.formats import open_checkpoint
from lightning_fire.where.layers import injected_heads, plain
from lightning_fire.where.selection import shorten

_WEIGHTS = (".safetensors", ".bin")  # files of a folder covered by a digest


@dataclass(frozen=True)
class EarlierTraining:
    """Weights and optimizer states of an earlier training.

    Attributes:
        name: Name in messages, usually a file path.
        weights: Parameters and buffers by name.
        optimizer_states: State dicts of its optimizers, as of `torch.optim`; empty if there are none.
    """

    name: str
    weights: Mapping[str, Tensor]
    optimizer_states: Sequence[Mapping[str, Any]] = field(default=())

    def load_weights(self, module: nn.Module, only_check: bool = False) -> None:
        """Load the weights into a module.

        Names may lack a prefix that all names of the module have, such as that of a network in a LightningModule, or
        have an additional one. One of several tied weights is enough. Heads wrapped by `PlasticityInjection` take
        weights from before and after injections.

        Args:
            module: The module; it is unchanged if an error is raised.
            only_check: Whether only to check that they fit.

        Raises:
            ValueError: If names or shapes differ.
        """
        fitting = self._fitting(module)
        if not only_check:
            module.load_state_dict(fitting, strict=False)

    def require_new(self, module: nn.Module) -> None:
        """Raise a ValueError if all floating point parameters of a module that fits already have these weights."""
        fitting, own = self._fitting(module), module.named_parameters(remove_duplicate=False)
        new = {name: parameter for name, parameter in own if name in fitting and parameter.is_floating_point()}
        if new and all(not p.is_meta and torch.equal(p, fitting[name].to(p)) for name, p in new.items()):
            raise ValueError(
                f"{type(module).__name__} has the weights of {self.name} before they are loaded, so that training from"
                " scratch would continue, too: make it with new weights"
            )

    def _fitting(self, module: nn.Module) -> dict[str, Tensor]:
        """Return the weights by the names of a module; raise the ValueError of `load_weights`."""
        heads, frozen = injected_heads(module)
        written = {name: tensor for name, tensor in self.weights.items() if not name.startswith(frozen)}
        own = {
            _of_head(plain(name), heads): (name, t)
            for name, t in module.state_dict().items()
            if isinstance(t, Tensor) and not plain(name).startswith(frozen)
        }
        given = _renamed({_of_head(plain(name), heads): tensor for name, tensor in written.items()}, list(own))
        tied = {own[name][1].data_ptr() for name in own.keys() & given.keys()}
        lacking = [
            name for name, (_, t) in own.items() if name not in given and (t.data_ptr() not in tied or not t.numel())
        ]
        reasons = [f"it lacks {shorten(lacking)}"] if lacking else []
        if more := [name for name in given if name not in own]:
            reasons.append(f"it also holds {shorten(more)}")
            if injected := sorted({name.partition(".taken_away.")[0] for name in more if ".taken_away." in name}):
                reasons.append(f"it is of a PlasticityInjection: call wrap_heads(model, {injected}) before")
        for name in own.keys() & given.keys():
            if given[name].shape != own[name][1].shape:
                here, there = tuple(own[name][1].shape), tuple(given[name].shape)
                reasons.append(f"{name} is {there} in it, and {here} in the model")
                break
        if reasons:
            raise ValueError(f"{self.name} does not fit {type(module).__name__}: {'; '.join(reasons)}")
        copies = {name: tensor for name, tensor in self.weights.items() if name not in written}
        return {own[name][0]: tensor for name, tensor in given.items()} | copies

    def load_optimizer_states(self, optimizers: Sequence[Optimizer]) -> str:
        """Load the states of parameters into optimizers; learning rates and other settings are kept.

        Args:
            optimizers: Optimizers of the model, in the order of the earlier training.

        Returns:
            The reason why no optimizer was changed; empty if all were.
        """
        states = self.optimizer_states
        if not states:
            return f"{self.name} holds none"
        if len(states) != len(optimizers):
            return f"{self.name} holds the state of {len(states)} optimizers, not of {len(optimizers)}"
        new = []
        for optimizer, state in zip(optimizers, states, strict=True):
            groups, own = state.get("param_groups", ()), optimizer.state_dict()
            if [len(group["params"]) for group in groups] != [len(group["params"]) for group in own["param_groups"]]:
                return f"{self.name} has other groups of parameters"
            settings = {
                name
                for name, value in getattr(optimizer, "defaults", {}).items()
                if isinstance(value, int | float | tuple) and not isinstance(value, bool)
            }
            if any(lacking := sorted(settings - group.keys()) for group in groups):
                return (
                    f"{self.name} is of another kind of optimizer than {type(optimizer).__name__}, without {lacking[0]}"
                )
            numbers, parameters = (
                [key for group in of for key in group["params"]] for of in (groups, optimizer.param_groups)
            )
            found = {}
            for index, (number, parameter) in enumerate(zip(numbers, parameters, strict=True)):
                values = state["state"].get(number, {})
                if other := [k for k, v in values.items() if _is_of_another(v, parameter)]:
                    return f"{other[0]} of {self.name} has another shape than its parameter"
                found[index] = {k: v.clone() if isinstance(v, Tensor) else v for k, v in values.items()}
            new.append({**own, "state": {index: values for index, values in found.items() if values}})
        for optimizer, content in zip(optimizers, new, strict=True):
            optimizer.load_state_dict(content)
        return ""


def read_earlier_training(path: str | Path) -> EarlierTraining:
    """Read a checkpoint of any known format, see `open_checkpoint`.

    Raises:
        ValueError: If it is corrupt, of an unknown format, or holds several networks.
        OSError: If it does not exist, or cannot be read.
    """
    try:
        checkpoint = open_checkpoint(Path(path))
    except ValueError as error:  # advice that names options of other commands
        reason = str(error).partition("; choose one or more")[0].partition(" If you trust")[0].rstrip(".")
        alone = ": save the weights alone, torch.save(model.state_dict(), file)" if reason != str(error) else ""
        raise ValueError(f"{reason}{alone}") from None
    weights = {name: checkpoint.read(stored.name) for stored in checkpoint.tensors for name in stored.names}
    return EarlierTraining(str(path), weights, tuple(checkpoint.optimizer_states()))


def digest_of(path: str | Path) -> str:
    """Return the SHA-256 of a file, or of the weights in a folder."""
    path = Path(path)
    files = sorted(file for file in path.iterdir() if file.suffix in _WEIGHTS) if path.is_dir() else [path]
    total = hashlib.sha256()
    for file in files:
        with file.open("rb") as content:
            while block := content.read(1 << 20):
                total.update(block)
    return total.hexdigest()


def _of_head(name: str, heads: Sequence[str]) -> str:
    """Return the name that a weight had before its head was wrapped."""
    head = next((head for head in heads if name.startswith(f"{head}.trained.")), None)
    return name if head is None else head + name.removeprefix(f"{head}.trained")


def _renamed(given: Mapping[str, Tensor], own: Sequence[str]) -> dict[str, Tensor]:
    """Add or remove a prefix so that all names match a module; if there is none, change nothing."""
    options = []
    if given and own and not given.keys() <= set(own):
        first, mine = next(iter(given)), own[0]
        for prefix in {name.removesuffix(first) for name in own if name.endswith(f".{first}")}:
            options.append({f"{prefix}{name}": tensor for name, tensor in given.items()})
        for prefix in {name.removesuffix(mine) for name in given if name.endswith(f".{mine}")}:
            options.append({name.removeprefix(prefix): tensor for name, tensor in given.items()})
    return next((option for option in options if option.keys() <= set(own)), dict(given))


def _is_of_another(value: Any, parameter: Tensor) -> bool:
    """Return whether a tensor of optimizer state cannot be that of a parameter, elementwise."""
    return isinstance(value, Tensor) and value.ndim == parameter.ndim > 0 and value.shape != parameter.shape
