"""Files of `torch.save`: Lightning checkpoints and state dicts."""

import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lightning_fire.checkpoints.atomic import atomic_file
from lightning_fire.checkpoints.stored import Change, stored_tensors

_WAY_OUT = " If you trust where it comes from: --unsafe-pickle"
_WRAPPERS = ("state_dict", "model_state_dict", "model", "module", "net")


class PickledCheckpoint:
    """The weights in a file of `torch.save`. They are mapped into memory, not read, where the file allows it.

    Attributes:
        tensors: The tensors of its state dict, in order, tied ones once.
        description: Its kind and number of tensors, for messages.
    """

    def __init__(self, path: Path, unsafe: bool = False):
        self.path = path
        self._content = load_pickled(path, unsafe, _WAY_OUT)
        place, state = _state_of(self._content)
        if not state:
            raise ValueError(f"{path} holds no tensors by name, but {type(self._content).__name__}")
        self._state = state
        self.tensors = stored_tensors(state)
        lightning = isinstance(self._content, Mapping) and "pytorch-lightning_version" in self._content
        kind = "Lightning checkpoint" if lightning else f"torch.save of {place}"
        self.description = f"{kind}, {len(self.tensors)} tensors"

    def read(self, name: str) -> Tensor:
        """Return one tensor."""
        return self._state[name].detach()

    def optimizer_states(self) -> list[dict[str, Any]]:
        """Return the optimizer states in the file, under any key."""
        if not isinstance(self._content, Mapping):
            return []
        lists = [value if isinstance(value, list) else [value] for value in self._content.values()]
        entries = [entry for several in lists for entry in several if isinstance(entry, dict)]
        return [entry for entry in entries if {"state", "param_groups"} <= set(entry)]

    def save(self, output: Path, names: Sequence[str], change: Change) -> None:
        """Write a copy with some tensors changed; all else in the file is kept."""
        for name in names:
            change(name, self.read(name))
        with atomic_file(output) as part:
            try:
                torch.save(self._content, part)
            except RuntimeError as error:  # torch's own writer, say on a full disk
                raise OSError(f"{output} cannot be written: {_first_line(error)}") from error


def load_pickled(path: Path, unsafe: bool = False, way_out: str = "") -> Any:
    """Load a file of `torch.save`, mapped into memory where it allows that."""
    with path.open("rb") as file:
        if not file.read(1):
            raise ValueError(f"{path} is empty")
    if _is_compressed(path):  # torch maps what is packed as if it were the values, and unpacks without a limit
        raise ValueError(f"{path} is compressed, as torch.save does not write it: pack it again without compression")
    try:
        # files from before torch 1.6 are no zip archives, and cannot be mapped
        return torch.load(path, map_location="cpu", weights_only=not unsafe, mmap=zipfile.is_zipfile(path))
    except Exception as error:  # a broken pickle can raise anything
        raise ValueError(f"{path} {_what_is_wrong(error, way_out)}") from None


def _is_compressed(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist())
    except Exception:  # not an archive, or a broken one: torch reports it
        return False


def _what_is_wrong(error: Exception, way_out: str) -> str:
    if found := re.search(r"GLOBAL (\S+) whose module \S+ is blocked", str(error)):
        return f"would run {found[1]} when it is loaded, as no checkpoint does: it may well be an attack"
    if found := re.search(r"GLOBAL (\S+) was not an allowed global", str(error)):
        return (
            f"holds Python objects ({found[1]}), which are not loaded by default: loading them runs any code that the"
            f" file contains.{way_out}"
        )
    return f"is not a complete checkpoint of torch: {_first_line(error)}"


def _state_of(content: Any) -> tuple[str, dict[str, Tensor]]:
    """Find the tensors by name: return where they are, and which."""
    if isinstance(content, nn.Module):
        return type(content).__name__, content.state_dict()
    if not isinstance(content, Mapping):
        return "", {}
    for key in _WRAPPERS:
        if isinstance(content.get(key), Mapping | nn.Module):
            _, state = _state_of(content[key])
            if state:
                return f"{key!r}", state
    return "a state dict", {k: v for k, v in content.items() if isinstance(k, str) and isinstance(v, Tensor)}


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}".rstrip(": ")
