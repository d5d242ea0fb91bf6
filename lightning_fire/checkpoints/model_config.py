"""Settings of a Hugging Face model from its `config.json`, not visible in names and shapes of tensors."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

FILE = "config.json"
_TASK = re.compile(r"(?:For[A-Z]\w*|LMHeadModel|Model)$")  # suffix of a class such as GPTNeoXForCausalLM


@dataclass(frozen=True)
class ModelConfig:
    """Settings of a model, as in the file; empty if unknown."""

    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def architecture(self) -> str:
        """Name of the model's class, such as `GPTNeoXForCausalLM`; empty if unknown."""
        names = self.settings.get("architectures")
        return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""

    @property
    def is_causal_language_model(self) -> bool:
        """True for a model that predicts each token from the preceding ones."""
        return self.architecture.endswith(("ForCausalLM", "LMHeadModel"))

    def attention(self) -> object:
        """Return a stand-in for the model's attention modules: their class name, with the settings as attributes."""
        name = f"{_TASK.sub('', self.architecture)}Attention"
        return type(name, (SimpleNamespace,), {})(**self.settings)


def config_beside(checkpoint: Path) -> ModelConfig:
    """Return the settings in a folder, or in the folder of a file; empty without a model's `config.json`."""
    path = (checkpoint if checkpoint.is_dir() else checkpoint.parent) / FILE
    return _read(path) if path.is_file() else ModelConfig()


def read_config(path: Path) -> ModelConfig:
    """Read settings from a `config.json` or its folder; raise a ValueError if they are not of a model."""
    path = path / FILE if path.is_dir() else path
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not a file: name the {FILE} of a Hugging Face model, or its folder")
    config = _read(path)
    if not config.architecture:
        raise ValueError(f"{path} does not hold the settings of a Hugging Face model: it has no `architectures`")
    return config


def _read(path: Path) -> ModelConfig:
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # of JSON, of UTF-8; of many brackets
        raise ValueError(f"{path} is not JSON of settings: {error}") from None
    return ModelConfig(settings if isinstance(settings, dict) else {})
