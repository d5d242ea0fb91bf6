"""Checks of the arguments `model` and `where` of methods and callbacks."""

from typing import TypeVar

from torch import nn
from torch.optim import Optimizer

from lightning_fire.where.hidden_matrices import HiddenMatrices
from lightning_fire.where.parameters import Parameters
from lightning_fire.where.selection import ByName

S = TypeVar("S", bound=ByName)


def checked(where: S | None, default: S) -> S:
    """Check a selection: of the default's class, or any object with such a `select`. Return the default for None."""
    kind, own = type(default), (Parameters, HiddenMatrices) if isinstance(default, Parameters) else type(default)
    if where is None:
        return default
    if callable(getattr(where, "select", None)) and not isinstance(where, type):
        if isinstance(where, own) or not isinstance(where, ByName):
            return where
        raise TypeError(f"`where` must be a selection of the kind {kind.__name__}(…), got {where!r}")
    got = f"{where!r}" if isinstance(where, str | list | tuple) else type(where).__name__
    if isinstance(where, type):
        got = f"the class {where.__name__}: write {where.__name__}(…)"
    elif isinstance(where, nn.Module):
        got += ": a method is made without a model, as FIRE(), and applied to it by FIRE()(model, Loop(…))"
    elif isinstance(where, Optimizer):
        got += ": an optimizer is given by name, `optimizers=…`"
    raise TypeError(f"`where` must be a selection such as {kind.__name__}(include=['^head']), got {got}")


def check_model(model: nn.Module) -> None:
    """Raise a TypeError if a model is not a module."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"`model` must be a torch.nn.Module, which is changed in place, got {type(model).__name__}")
