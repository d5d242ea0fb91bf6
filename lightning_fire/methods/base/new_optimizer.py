"""New optimizers with the class and settings of given ones, mostly small, to find out how a new one steps."""

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer, SparseAdam

from lightning_fire.methods.base.seeded import seeded

Parameters = Callable[[Mapping[str, Any]], list[Tensor]]  # of a parameter group


def new_like(optimizer: Optimizer, parameters: Parameters) -> Optimizer:
    """Make a new optimizer with the class and settings of a given one, and of one that it wraps.

    Args:
        optimizer: The optimizer.
        parameters: Returns the parameters of the new one for each group of the optimizer, see `small`.

    Raises:
        Exception: Any that its class raises, if it cannot be made from settings alone.
    """
    names = arguments_of(optimizer)
    try:
        return _made(optimizer, names, parameters)
    except Exception:  # a class may need a key of its groups, such as `use_muon`
        items = [item for group in optimizer.param_groups for item in group.items()]
        words = {key for key, value in items if isinstance(value, bool | str)}
        return _made(optimizer, names | words, parameters)


def small(group: Mapping[str, Any]) -> list[Tensor]:
    """Return two parameters for each number of dimensions in a group, with two to four rows and columns."""
    like = {parameter.ndim: parameter for parameter in group["params"]}
    shapes = {parameter: [min(max(size, 2), 4) for size in parameter.shape] for parameter in like.values()}
    return [
        nn.Parameter(torch.randn(shape, dtype=parameter.dtype, device=parameter.device))
        for parameter, shape in shapes.items()
        for _ in range(2)
    ]


def in_order(optimizer: Optimizer) -> list[Tensor]:
    """Return the parameters that an optimizer steps, in order."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def step(optimizer: Optimizer, gradients: Sequence[Tensor]) -> None:
    """Step an optimizer with given gradients, one for each of its parameters."""

    def closure() -> Any:
        for parameter, gradient in zip(in_order(optimizer), gradients, strict=True):
            parameter.grad = gradient.to_sparse() if isinstance(optimizer, SparseAdam) else gradient.clone()
        return torch.ones(())

    closure()
    optimizer.step(closure)


def warm_up(optimizer: Optimizer) -> None:
    """Step an optimizer with one gradient until all its counters and adaptive settings have changed."""
    gradients = [torch.randn_like(parameter) for parameter in in_order(optimizer)]
    for _ in range(20):
        step(optimizer, gradients)


@contextmanager
def unnoticed(optimizer: Optimizer) -> Iterator[None]:
    """Context manager: random states are restored, nothing is compiled, and warnings are off."""
    devices = {parameter.device for parameter in in_order(optimizer)}
    with warnings.catch_warnings(), seeded(0, devices), torch.compiler.set_stance("force_eager"):
        warnings.simplefilter("ignore")
        yield


def arguments_of(optimizer: Optimizer) -> set[str]:
    """Return the names of the arguments of an optimizer, and of one that it wraps."""
    found: set[str] = set()
    for kind in type(optimizer).__mro__:
        signature = inspect.signature(getattr(kind, "__init__")).parameters  # noqa: B009  # mypy takes it for unsound
        found |= signature.keys() - {"self"}
        if all(argument.kind != argument.VAR_KEYWORD for argument in signature.values()):
            break
    return found.union(*(arguments_of(held) for held in vars(optimizer).values() if isinstance(held, Optimizer)))


def _made(optimizer: Optimizer, names: set[str], parameters: Parameters) -> Optimizer:
    options: dict[str, Any] = {}
    arguments = list(inspect.signature(type(optimizer).__init__).parameters.values())[1:]
    inner = [held for held in vars(optimizer).values() if isinstance(held, Optimizer)]
    for argument in arguments:
        name, value = argument.name, getattr(optimizer, "defaults", {}).get(argument.name, argument.default)
        held = vars(optimizer).get(name, vars(optimizer).get(f"_{name}"))
        if argument is arguments[0] and name != "params" and len(inner) == 1:
            held = inner[0]
        if isinstance(held, Optimizer):  # SAM takes its class
            options[name] = type(held) if "params" in options else _made(held, names, parameters)
        elif name == "params" or (argument is arguments[0] and value is argument.empty):
            options[name] = [
                _settings(group, names) | {"params": parameters(group)} for group in optimizer.param_groups
            ]
        elif argument.kind not in (argument.VAR_KEYWORD, argument.VAR_POSITIONAL):
            is_plain = isinstance(held, bool | int | float | str | tuple | type)
            if (value := held if is_plain else value) is not argument.empty:
                options[name] = value
    new = type(optimizer)(**options)
    if callable(train := getattr(new, "train", None)):  # of schedule-free ones
        train()
    return new


def _settings(group: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    settings = {key: value for key, value in group.items() if key in names and key != "params"}
    if "lr" in settings and not settings["lr"]:
        settings["lr"] = 0.01  # steps of 0 show nothing
    return {key: value.clone() if isinstance(value, Tensor) else value for key, value in settings.items()}
