"""Files of `torch.save`: Lightning checkpoints and state dicts."""

import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lightning_fire.checkpoints.atomic import atomic_file
from lightning_fire.checkpoints.model_config import ModelConfig, config_beside
from lightning_fire.checkpoints.stored import Change, stored_tensors

MODEL_CONFIG = "model_config"  # under which `LanguageModel` keeps the settings of a Hugging Face model


class PickledCheckpoint:
    """Weights in a file of `torch.save`, tied ones once; memory-mapped where the file allows it."""

    def __init__(self, path: Path, unsafe: bool = False):
        self.path = path
        self._content = load_pickled(path, unsafe, " If you trust where it comes from: --unsafe-pickle")
        place, self._state = _state_of(self._content)
        if not self._state:
            raise ValueError(f"{path} holds no tensors by name, but {type(self._content).__name__}")
        self.tensors = stored_tensors(self._state)
        self._entries = self._content if isinstance(self._content, Mapping) else {}
        lightning = "pytorch-lightning_version" in self._entries
        kind = "Lightning checkpoint" if lightning else f"torch.save of {place}"
        self.description = f"{kind}, {len(self.tensors)} tensors"
        settings = self._entries.get(MODEL_CONFIG)
        self.config = ModelConfig(settings) if isinstance(settings, dict) else config_beside(path)

    def read(self, name: str) -> Tensor:
        """Return one tensor."""
        return self._state[name].detach()

    def optimizer_states(self) -> list[dict[str, Any]]:
        """Return the optimizer states in the file, under any key."""
        lists = [value if isinstance(value, list) else [value] for value in self._entries.values()]
        entries = [entry for entries in lists for entry in entries]
        return [entry for entry in entries if isinstance(entry, dict) and {"state", "param_groups"} <= set(entry)]

    def has_average(self) -> bool:
        """Return whether the weights are an average, and those of training a second entry, as Lightning saves them."""
        return "current_model_state" in self._entries

    def save(self, output: Path, names: Sequence[str], change: Change) -> None:
        """Write a copy with some tensors changed; everything else in the file is kept."""
        for name in names:
            change(name, self.read(name))
        with atomic_file(output) as part:
            torch.save(self._content, part)


def load_pickled(path: Path, unsafe: bool = False, way_out: str = "") -> Any:
    """Load a file of `torch.save`, memory-mapped where it allows that; a ValueError if it is corrupt or unsafe."""
    try:
        # files from before torch 1.6 are not zip archives, and cannot be mapped
        return torch.load(path, map_location="cpu", weights_only=not unsafe, mmap=zipfile.is_zipfile(path))
    except Exception as error:  # a broken pickle can raise anything
        first_line = next(iter(str(error).splitlines()), "")
        reason = f"is not a complete checkpoint of torch: {type(error).__name__}: {first_line}"
        if found := re.search(r"GLOBAL (\S+) whose module \S+ is blocked", str(error)):
            reason = f"would run {found[1]} when it is loaded, as no checkpoint does: it may well be an attack"
        elif found := re.search(r"GLOBAL (\S+) was not an allowed global", str(error)):
            objects = f"holds Python objects ({found[1]}), which are not loaded by default"
            reason = f"{objects}: loading them runs any code that the file contains.{way_out}"
        raise ValueError(f"{path} {reason}") from None


def _state_of(content: Any) -> tuple[str, dict[str, Tensor]]:
    """Find the tensors by name: return a description of their location, and the tensors."""
    if isinstance(content, nn.Module):
        return type(content).__name__, content.state_dict()
    if not isinstance(content, Mapping):
        return "", {}
    for key in ("state_dict", "model_state_dict", "model", "module", "net"):
        if isinstance(content.get(key), Mapping | nn.Module):
            _, state = _state_of(content[key])
            if state:
                return f"{key!r}", state
    return "a state dict", {k: v for k, v in content.items() if isinstance(k, str) and isinstance(v, Tensor)}
