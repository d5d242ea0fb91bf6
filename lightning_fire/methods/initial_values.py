"""The two states to which a network can be reset: its initial values, and new random values."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from lightning_fire._private import copy_with_own_tensors, reset_of_attention
from lightning_fire.contracts import HasResetParameters, implements
from lightning_fire.distributed import gathered, is_expanded, local, warn
from lightning_fire.methods.base.loop import Loop
from lightning_fire.methods.base.method import as_models
from lightning_fire.methods.base.seeded import seeded
from lightning_fire.where.argument import check_model
from lightning_fire.where.layers import plain
from lightning_fire.where.selection import shorten
from lightning_fire.where.weight_layers import computes_weights


def initial_values(model: nn.Module | Sequence[nn.Module]) -> dict[str, Tensor]:
    """Copy the values of a model. Call it when the model is new.

    Args:
        model: Any module, or a list of modules: names then start with their indices.

    Returns:
        All parameters and buffers by name, on the CPU; sharded ones are gathered. Lazy parameters and those on the meta
        device are left out.

    Example:
        >>> list(initial_values(nn.Linear(2, 3)))
        ['weight', 'bias']
    """
    tensors = tensors_of(_whole(model)).items()
    there = {name: tensor for name, tensor in tensors if not is_lazy(tensor) and not tensor.is_meta}
    return {name: gathered(tensor).cpu().clone() for name, tensor in there.items()}


def fresh_values(model: nn.Module | Sequence[nn.Module], seed: int) -> dict[str, Tensor]:
    """Draw new values for a model by each layer's `reset_parameters`.

    Args:
        model: Any module, or a list of modules, see `initial_values`. It and the global random state are not changed.
        seed: Seed of the draw.

    Returns:
        All parameters and buffers by name; those that no `reset_parameters` draws, also as a layer computes its weight
        (`weight_norm`), have their current value, with a warning.

    Example:
        >>> model = nn.Linear(2, 3)
        >>> bool((fresh_values(model, seed=1)["weight"] == fresh_values(model, seed=1)["weight"]).all())
        True
    """
    whole = _whole(model)
    values = drawn_values(whole, seed)
    if stuck := not_resettable(whole):
        warn(f"fresh_values keeps the values of {shorten(stuck)}: no reset_parameters() draws them", whole)
    return values


@torch.no_grad()
def drawn_values(model: nn.Module, seed: int) -> dict[str, Tensor]:
    """Draw new values as `fresh_values` does, without its warning."""
    tensors = tensors_of(model)
    former = [(part, part.clone()) for part in map(local, tensors.values()) if not is_expanded(part)]
    try:
        with seeded(seed, {tensor.device for tensor in model.parameters()}):
            for layer in sorted(model.modules(), key=_is_attention):  # which also sets the bias of a layer in it
                if (reset := reset_of(layer)) is not None:
                    reset()
        return {name: tensor.clone() for name, tensor in tensors.items()}
    finally:
        for part, values in former:
            part.copy_(values)


@torch.no_grad()
def drawn_by(layer: nn.Module, seed: int) -> dict[str, Tensor]:
    """Draw the parameters of one layer by its `reset_parameters`, without ever writing into the layer.

    Returns:
        Its own parameters by name, without those of submodules. The global random state is not changed.
    """
    copied = copy_with_own_tensors(layer)
    if (reset := reset_of(copied)) is None:
        raise ValueError(f"{type(layer).__name__} has no reset_parameters()")
    with seeded(seed, {parameter.device for parameter in layer.parameters()}):
        reset()
    return {name: parameter.detach() for name, parameter in copied.named_parameters(recurse=False)}


def reset_of(layer: nn.Module) -> Callable[[], object] | None:
    """Return the method by which a layer draws its own parameters, `reset_parameters`; None if it has none."""
    if _is_attention(layer):
        return reset_of_attention(layer)
    return layer.reset_parameters if implements(layer, HasResetParameters) else None


def _is_attention(layer: nn.Module) -> TypeGuard[nn.MultiheadAttention]:
    return isinstance(layer, nn.MultiheadAttention)


def seed_of_draw(seed: int, number: int) -> int:
    """Seed of the n-th draw, distinct from those of other draws and of nearby seeds."""
    return seed + 1_000_003 * number


def not_resettable(model: nn.Module, chosen: Collection[Tensor] | None = None) -> list[str]:
    """Return the names of layers with (chosen) parameters that no `reset_parameters` draws."""
    return [
        name or type(layer).__name__
        for name, layer in model.named_modules()
        if any(chosen is None or parameter in chosen for parameter in layer.parameters(recurse=False))
        and (computes_weights(layer) or reset_of(layer) is None)
    ]


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers of a model by name, tied ones once; not those of frozen copies of a head."""
    check_model(model)
    copies = [f"{name}." for name, part in model.named_modules() if getattr(part, "is_frozen_copy", False)]
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {name: tensor for name, tensor in named.items() if not name.startswith(tuple(copies))}


def unknown_in(values: Mapping[str, Tensor], model: nn.Module) -> list[str]:
    """Return the sorted names of the tensors of a model without a value of the same shape."""
    known = {name: value.shape for name, value in values.items()}
    return sorted(name for name, tensor in tensors_of(model).items() if known.get(name) != tensor.shape)


def check_resettable(model: nn.Module, chosen: Iterable[Tensor]) -> None:
    """Raise a ValueError if some of the chosen parameters cannot be drawn by their layers."""
    if stuck := not_resettable(model, set(chosen)):
        raise ValueError(
            f"`fresh_seed` is given, but {', '.join(stuck)} has parameters and no reset_parameters() that draws them;"
            " give it one, use the initial values, or leave it out by `where`"
        )


def initial_of(model: nn.Module, training: Loop) -> dict[str, Tensor]:
    """Return the initial values by current names, also if the model was compiled after they were copied."""
    known = {plain(name): value for name, value in training.initial_values().items()}
    names = {name: plain(name) for name in tensors_of(model)}
    return {name: known[short] for name, short in names.items() if short in known}


def _whole(model: nn.Module | Sequence[nn.Module]) -> nn.Module:
    several = as_models(model)
    return several[0] if len(several) == 1 else nn.ModuleList(several)


def check_values(values: Mapping[str, Tensor]) -> None:
    """Raise a TypeError unless the argument `target` maps names to tensors."""
    if not isinstance(values, Mapping) or not all(isinstance(value, Tensor) for value in values.values()):
        raise TypeError(f"`target` must be values by name, such as initial_values(model), got {type(values).__name__}")
