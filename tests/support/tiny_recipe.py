"""A recipe of a few seconds, and the error of the command line for a wrong one."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from lightning_fire.cli import main

BASE = """
seed_everything: 0
model:
  class_path: lightning_fire.modules.Classifier
  init_args:
    num_classes: 10
    net: {class_path: lightning_fire.nets.ResNet, init_args: {in_channels: 1, widths: [4, 8], blocks: [1, 1]}}
data:
  class_path: lightning_fire.data.SmallFashionMNISTDataModule
  init_args:
    batch_size: 8
    protocol: {class_path: Continual, init_args: {num_chunks: 3, epochs: 2}}
trainer:
  accelerator: cpu
  enable_progress_bar: false
  enable_model_summary: false
  limit_train_batches: 2
  limit_val_batches: 1
  callbacks:
    - {class_path: PlasticityCallback, init_args: {method: {class_path: OptimizerReset}}}
"""
FIRE = """
method:
  class_path: FIRE
  init_args:
    where: {class_path: Weights, init_args: {preset: cnn, exclude: ["net.head"]}}
    steps: 5
"""

MONITOR = "    - class_path: PlasticityMonitor\n"


def write_recipe(file: Path, base: str, methods: Mapping[str, str], starts: str = "") -> Path:
    """Write a recipe of YAML texts: its base, and what each method adds to it; return its file."""
    content = yaml.safe_load(base)
    content |= {"starts": yaml.safe_load(starts)} if starts else {}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        yaml.safe_dump({**content, "methods": {k: yaml.safe_load(v) for k, v in methods.items()}}, sort_keys=False)
    )
    return file


def tiny_recipe(folder: Path, methods: Mapping[str, str]) -> Path:
    """Write `folder/recipes/tiny.yaml`, a recipe with methods by name; return it."""
    return write_recipe(folder / "recipes" / "tiny.yaml", BASE + MONITOR, methods)


def set_method(recipe: Path, name: str, text: str) -> None:
    """Add a method to a recipe, or replace it."""
    content = yaml.safe_load(recipe.read_text())
    content["methods"][name] = yaml.safe_load(text)
    recipe.write_text(yaml.safe_dump(content, sort_keys=False))


def set_base(recipe: Path, text: str) -> None:
    """Replace all of a recipe but its methods."""
    methods = yaml.safe_load(recipe.read_text())["methods"]
    recipe.write_text(yaml.safe_dump({**yaml.safe_load(text), "methods": methods}, sort_keys=False))


def error_of(words, capsys) -> str:
    with pytest.raises(SystemExit):
        main(words)
    return capsys.readouterr().err
