"""Hints on mistakes in a recipe, printed before the message of jsonargparse."""

import inspect
import pkgutil
import re
import sys
from collections.abc import Iterable
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from jsonargparse import ArgumentParser
from lightning.pytorch import Trainer
from lightning.pytorch import callbacks as of_lightning

import lightning_fire
from lightning_fire import callbacks, data, methods, modules, nets, optim, when, where

_ROOMS = (lightning_fire, callbacks, methods, data, modules, nets, optim, when, where, of_lightning, torch.optim)
_OF_METHODS = ("method", "when", "start_chunk", "log")
_KEYS = (*_OF_METHODS, "model", "data", "trainer", "train", "optimizer", "lr_scheduler", "seed_everything", "ckpt_path")


def hint(message: str) -> str | None:
    """Return the innermost reason of a jsonargparse message in one line, with the nearest name; None if unknown.

    Messages of nested parsers have already been reduced by this function.
    """
    value = re.search(r"(?:Given|Got) value: (.+)", message)
    key = re.match(r'Parser key "([\w.]+)":', message)
    place = f"{key[1]}: " if key else ""
    if (found := re.search(r"No module named '([\w.]+)'", message)) and "pip install" not in message:
        known = [*(path.stem for path in Path().glob("*.py")), "lightning_fire"]
        return f"{place}there is no module {found[1]}, installed or in the current folder" + nearest(found[1], known)
    if found := re.search(r"module '([\w.]+)' has no attribute '(\w+)'", message):
        is_kind, word = (inspect.isclass, "class ") if found[2][0].isupper() else (inspect.isfunction, "function ")
        known = [name for name, thing in vars(sys.modules.get(found[1], re)).items() if is_kind(thing)]
        return f"{place}{found[1]} has no {word}{found[2]}" + nearest(found[2], known)
    if found := re.search(r"Problem with given class_path '([\w.]+)':\s+(.+)", message):
        name, reason = found[1].rpartition(".")[2], found[2]
        if not (option := re.fullmatch(r"Option '([\w.]+)' is not accepted", reason)):
            return None if re.match(r"Parser key|'\w+' object has no", reason) else f"{place}{name}: {reason}"
        if option[1].rpartition(".")[2] == "class_path":
            given = f", got {value[1]}" if value else ""
            return f"{place}the arguments of a class belong under init_args, beside its class_path{given}"
        return f"{place}{name} has no argument {option[1]}" + nearest(option[1], _arguments(found[1]))
    if found := re.search(r"Expected a dot import path string: (\w+)$", message, re.MULTILINE):
        known = [name for room in _ROOMS for name, kind in vars(room).items() if inspect.isclass(kind)]
        return f"{place}unknown class {found[1]}" + nearest(found[1], known)
    if found := re.search(r"(?:unrecognized arguments: --|does not accept option ')([^\s=']+)", message):
        keys = [*_KEYS, *(f"trainer.{name}" for name in inspect.signature(Trainer).parameters)]
        meant = "" if found[1] in keys else nearest(found[1], keys)
        return f"unknown key {found[1]}{meant}" if meant else None
    kinds = re.findall(r"Expected an? (?:<class '([\w.]+)'>|typing\.Literal\[(.+?)\])", message)
    if key and value and kinds and len(kinds) >= len(re.findall(r"^ +- ", message, re.MULTILINE)):
        names = [choice or kind.rpartition(".")[2].replace("NoneType", "null") for kind, choice in kinds]
        choices = re.findall(r"'(\w+)'", " ".join(names))
        return f"{key[1]} must be {' or '.join(names)}, got {value[1]}" + nearest(value[1], choices)
    return None


def _arguments(path: str) -> list[str]:
    """Return the arguments of a class or function by its short name or path, including those of its `**options`."""
    module, _, name = path.rpartition(".")
    kind = next((vars(room)[name] for room in _ROOMS if name in vars(room)), None)
    with suppress(ImportError, AttributeError, ValueError):
        kind = pkgutil.resolve_name(path) if module else kind
    parser = ArgumentParser()
    add: Any = parser.add_class_arguments if inspect.isclass(kind) else parser.add_function_arguments
    try:
        return list(add(kind, fail_untyped=False))
    except ValueError:  # neither of them
        return []


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a question with the known name nearest to another; empty if none is near."""
    by_lower = {word.lower(): word for word in known if not word.startswith("_")}
    near = [by_lower[word] for word in get_close_matches(name.lower(), by_lower, n=1)]
    return f"; did you mean {near[0]}?" if near else ""
