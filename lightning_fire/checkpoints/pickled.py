"""Files of `torch.save`: Lightning checkpoints and state dicts."""

import re
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightning_fire.atomic import atomic_file
from lightning_fire.checkpoints.model_config import ModelConfig, config_beside
from lightning_fire.checkpoints.networks import LIGHTNING, copies_of, is_average, networks_of, states_of
from lightning_fire.checkpoints.other_formats import require_format
from lightning_fire.checkpoints.stored import Checkpoint, Edit, stored_tensors

MODEL_CONFIG = "model_config"  # under which `LanguageModel` keeps the settings of a Hugging Face model
_UNSAFE_TORCH = (2, 10)  # earlier releases are unsafe: GHSA-63cw-57p8-fm3p


class PickledCheckpoint(Checkpoint):
    """Weights in a file of `torch.save`, tied ones once; memory-mapped if the file allows it.

    Args:
        path: The file.
        unsafe: Whether to unpickle arbitrary Python objects.
        keys: Keys of the networks to use; empty: the only one, or the one that Lightning loads from its checkpoint.
            With several, names of tensors start with the key of their network.
    """

    single = "pytorch_model.bin"  # name of the file in a folder

    def __init__(self, path: Path, unsafe: bool = False, keys: Sequence[str] = ()):
        self.path = path
        self._content = load_pickled(path, unsafe, " If you trust where it comes from: --unsafe-pickle")
        entries = self._content if isinstance(self._content, Mapping) else {}
        lightning = "pytorch-lightning_version" in entries
        networks = self._networks = networks_of(self._content)
        if not any(networks.values()):
            raise ValueError(f"{path} holds no tensors by name, but {type(self._content).__name__}")
        self.keys = tuple(keys) if len(networks) > 1 else tuple(networks)
        if not keys and set(networks) == LIGHTNING:
            self.keys = ("state_dict",)  # the average; Lightning loads it
        if not self.keys or not set(self.keys) <= set(networks):
            held = ", ".join(f"{key} ({len(state)} tensors)" for key, state in networks.items())
            raise ValueError(f"{path} holds {len(networks)} networks: {held}; choose one or more of them: --key KEY …")
        prefixes = {key: f"{key}." if len(self.keys) > 1 else "" for key in self.keys}
        self._state = {f"{prefixes[key]}{name}": tensor for key in self.keys for name, tensor in networks[key].items()}
        self.left = [key for key in networks if key not in self.keys] + copies_of(self._content)
        self.tensors = stored_tensors(self._state)
        place = " and ".join(map(repr, filter(None, self.keys))) or "a state dict"
        kind = "Lightning checkpoint" if lightning else f"torch.save of {place}"
        beside = f" (not taken: {', '.join(self.left)})" if self.left else ""
        self.description = f"{kind}, {len(self.tensors)} tensors{beside}"
        self._settings = entries.get(MODEL_CONFIG)

    @property
    def config(self) -> ModelConfig:
        """Settings of the model, in the file or in its folder."""
        return ModelConfig(self._settings) if isinstance(self._settings, dict) else config_beside(self.path)

    def read(self, name: str) -> Tensor:
        """Return one tensor."""
        return self._state[name].detach()

    def optimizer_states(self) -> list[dict[str, Any]]:
        """Return the optimizer states in the file, under any key."""
        return states_of(self._content)

    def notes(self) -> list[str]:
        """Return notes on networks and averages in the file that are not used."""
        notes = {key: f"{key} in the file is {self._kind_of(key)}not changed" for key in self.left}
        if "current_model_state" in notes:
            notes["current_model_state"] = (
                "the changed weights are an average (EMA); a resumed fit continues from `current_model_state`, which is"
                " not changed: load the output as weights, or change both by --key state_dict current_model_state"
            )
        return list(notes.values())

    def _kind_of(self, key: str) -> str:
        if is_average(key):
            return "an average, and "
        return "" if key in self._networks else "a copy of the weights from which training may continue, and "

    def save(self, output: Path, names: Sequence[str], change: Edit) -> None:
        """Write a copy with some tensors changed; everything else in the file is kept."""
        for name in names:
            change(name, self.read(name))
        with atomic_file(output) as part:
            torch.save(self._content, part)


def warning_of_torch(version: str = torch.__version__) -> str:
    """Return a warning if this version of torch is unsafe with pickles; otherwise empty."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if not numbers or (int(numbers[1]), int(numbers[2])) >= _UNSAFE_TORCH:
        return ""
    return (
        f"torch {version} can be made to run code by a harmful file of torch.save, also with weights_only=True"
        " (GHSA-63cw-57p8-fm3p, mended in torch 2.10): open only files that you trust"
    )


def load_pickled(path: Path, unsafe: bool = False, way_out: str = "") -> Any:
    """Load a file of `torch.save`, memory-mapped where it allows that; a ValueError if it is corrupt or unsafe.

    Warns if this torch is unsafe with such files.
    """
    require_format(path)
    if warning := warning_of_torch():
        warnings.warn(warning, stacklevel=2)
    try:
        # files from before torch 1.6 are not zip archives and cannot be mapped
        return torch.load(path, map_location="cpu", weights_only=not unsafe, mmap=zipfile.is_zipfile(path))
    except Exception as error:  # a broken pickle can raise anything
        text = str(error)
        reason = f"is not a complete checkpoint of torch: {type(error).__name__}: {_cause(text)}"
        if found := re.search(r"GLOBAL (\S+) whose module \S+ is blocked", text):
            reason = f"would run {found[1]} when it is loaded, as no checkpoint does: it may well be an attack"
        elif found := re.search(r"GLOBAL (\S+) was not an allowed global", text):
            objects = f"holds Python objects ({found[1]}), which are not loaded by default"
            reason = f"{objects}: loading them runs any code that the file contains.{way_out}"
        raise ValueError(f"{path} {reason}") from None


def _cause(text: str) -> str:
    """Return the cause from an error of `torch.load`, without its advice to load the file unsafely."""
    found = re.search(r"WeightsUnpickler error: (.*)", text)
    first_line = found[1] if found else next(iter(text.splitlines()), "")
    return "it cannot be read" if "weights_only" in first_line else first_line.strip()
