"""Methods of the user's own on the board, named FILE.py:CLASS."""

import hashlib
import importlib
import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lightning_fire.board.row import Row
from lightning_fire.experiments.source_of import importing_from_here, own_code
from lightning_fire.experiments.sweep import checked_space
from lightning_fire.recipe.recipe import check_name


@dataclass(frozen=True)
class OwnMethod:
    """A method in a file of the current folder.

    Attributes:
        name: Its own `name`, or that of the class as `snake_case`.
        layer: Configuration that it adds to a recipe.
        space: The values of each hyper-parameter that is tuned.
    """

    name: str
    layer: Mapping[str, Any]
    space: Mapping[str, Any]

    def source(self) -> str:
        """Return the SHA-256 of its current code."""
        return hashlib.sha256(own_code(self.layer).encode()).hexdigest()


def read_own(word: str) -> OwnMethod:
    """Read a method named FILE.py:CLASS.

    Raises:
        ValueError: If there is no such class, or the board cannot train it.
    """
    from lightning.pytorch import Callback

    from lightning_fire.methods.base.method import Method

    file, _, name = word.partition(":")
    kind = _class_of(file, name)
    if not issubclass(kind, Method | Callback):
        raise ValueError(f"{word} must be a method or a callback, but {name} derives from neither")
    space = getattr(kind, "search_space", {})
    if not isinstance(space, Mapping):
        raise ValueError(f"{word}: search_space must give a list of values by argument, got {space!r}")
    space = {key: list(of) if isinstance(of, tuple) else of for key, of in space.items()}
    space = checked_space(f"{word}: search_space", name, space)
    try:
        yaml.safe_dump(space)
    except yaml.YAMLError:
        raise ValueError(f"{word}: search_space must have numbers, strings, true or false, got {space}") from None
    try:
        inspect.signature(kind).bind(**{key: None for key in space if "." not in key})
    except TypeError as error:
        raise ValueError(f"{word} cannot be made from its search_space and defaults: {error}") from None
    own_name = str(vars(kind).get("name", re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()))
    check_name(own_name)
    return OwnMethod(own_name, {"method": {"class_path": f"{Path(file).stem}.{name}"}}, space)


def word_of(row: Row) -> str:
    """Return the command-line name of the method of a row.

    Raises:
        ValueError: If the row does not name the class of a method of the user's own.
    """
    if not any(cell.source for cell in row.cells.values()):
        return row.method
    try:
        module, _, kind = row.config["method"]["class_path"].rpartition(".")
    except (KeyError, TypeError, AttributeError):
        raise ValueError(f"the row of {row.method} has no config.method.class_path: {row.config}") from None
    return f"{module}.py:{kind}"


def _class_of(file: str, name: str) -> type:
    """Return a class of a file in the current folder, from which trainings import it."""
    path = Path(file)
    if path.suffix != ".py" or path.parent != Path() or not path.is_file() or not path.stem.isidentifier():
        raise ValueError(
            f"{file}:{name}: {file} must be a Python file in the current folder, with a name that can be imported"
        )
    try:
        with importing_from_here():
            found = getattr(importlib.import_module(path.stem), name, None)
    except Exception as error:  # the file is the user's, and may raise anything
        raise ValueError(f"{file} cannot be imported: {type(error).__name__}: {error}") from None
    if not isinstance(found, type):
        raise ValueError(f"{file} has no class {name}")
    return found
