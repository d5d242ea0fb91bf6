"""Checks of a recipe whose keys are all known and of the right type."""

import importlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from torch import nn

from lightning_fire.checkpoints.pickled import load_pickled

_LARGEST_SEED = 2**32 - 1  # NumPy's
_BASES = (Callback, LightningDataModule, LightningModule, nn.Module)  # built from `{}` instead of a subclass


def check_recipe(config: Mapping[str, Any], empty: Sequence[Sequence[str]]) -> None:
    """Check a recipe before anything is built."""
    require_known(config, empty)
    trainer, seed = config["trainer"], config["seed_everything"]
    if not isinstance(trainer, Mapping):
        raise ValueError(f"trainer must hold keys with values, got {trainer!r}")
    built = list(_built(config))
    if bases := [place for place, kind, _ in built if kind in _BASES]:
        raise ValueError(f"{', '.join(bases)} must name a class with class_path, and not one that does nothing")
    given = [(f"{place}.init_args", kind, arguments) for place, kind, arguments in built] + [
        ("trainer", Trainer, trainer)
    ]
    if nulls := [
        f"{place}.{name}"  # jsonargparse does not check this
        for place, kind, arguments in given
        for name, value in arguments.items()
        if value is None and not _takes_null(kind, name)
    ]:
        raise ValueError(f"null, or nothing after the colon, is not a value of {', '.join(nulls)}")
    if not isinstance(seed, bool | None) and not 0 <= seed <= _LARGEST_SEED:
        raise ValueError(f"seed_everything must be between 0 and {_LARGEST_SEED}, got {seed}")
    path = config.get("ckpt_path")
    if path in (None, "best", "last", "hpc") or ":" in str(path):  # the Trainer resolves names and URLs
        return
    if not Path(path).exists():
        raise FileNotFoundError(f"ckpt_path: {path} does not exist")
    if not Path(path).is_file() and not Path(path, ".metadata").is_file():
        raise ValueError(f"ckpt_path: {path} is not a checkpoint")
    if Path(path).is_file() and config.get("weights_only") is not False:
        load_pickled(Path(path))  # raises an error if it is broken, or would run code


def require_known(config: Mapping[str, Any], empty: Sequence[Sequence[str]]) -> None:
    """Raise a ValueError for keys whose value is `{}` and that are not in a configuration."""
    if unknown := [".".join(key) for key in empty if not _arrived(config, key)]:
        raise ValueError(f"unknown key {', '.join(unknown)}")


def _arrived(config: Any, key: Sequence[str]) -> bool:
    """Return whether a key is in a configuration; of a list, in any item."""
    if not key or key[0] in ("init_args", "dict_kwargs"):  # these may be empty
        return len(key) < 2 or _arrived(config, key[1:])
    if isinstance(config, list):
        return any(_arrived(item, key) for item in config)
    if not isinstance(config, Mapping):
        return False
    arguments = config.get("init_args") or {}
    holder = config if key[0] in config else arguments
    return key[0] in holder and _arrived(holder[key[0]], key[1:])


def _built(value: Any, place: str = "") -> Iterator[tuple[str, Any, Mapping[str, Any]]]:
    """Yield all objects to be built: the dotted key, the class, and its arguments."""
    if isinstance(value, Mapping):
        if isinstance(path := value.get("class_path"), str):
            try:
                kind = getattr(importlib.import_module(path.rpartition(".")[0]), path.rpartition(".")[2])
            except (ImportError, AttributeError, ValueError):  # a class inside a class
                kind = None
            yield place, kind, value.get("init_args") or {}
        for key, inner in value.items():
            yield from _built(inner, ".".join(filter(None, (place, str(key)))))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _built(inner, f"{place}[{number}]")


def _takes_null(source: Any, name: str) -> bool:
    """Return whether an argument may be None; True if that is unknown."""
    sources = [vars(kind).get("__init__") for kind in inspect.getmro(source)] if inspect.isclass(source) else [source]
    for constructor in filter(callable, sources):  # a base's, where `**options` are handed on to it
        try:
            parameter = inspect.signature(constructor).parameters.get(name)
            hint = get_type_hints(constructor).get(name, Any)
        except (TypeError, ValueError, NameError, AttributeError):
            return True
        if parameter is not None:
            free = any(kind in (None, type(None), Any, object) for kind in (hint, *get_args(hint)))
            return free or parameter.default is None or isinstance(hint, TypeVar)
    return True
