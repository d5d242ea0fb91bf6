"""A recipe of a few seconds, and what the command line says of one that it refuses."""

from collections.abc import Mapping
from pathlib import Path

import pytest

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
    - class_path: OptimizerReset
"""
FIRE = """
intervention:
  class_path: FIRECallback
  init_args:
    when: {class_path: AtNewData}
    where: {class_path: Weights, init_args: {preset: cnn, exclude: ["net.head"]}}
    steps: 5
"""

MONITOR = "    - class_path: PlasticityMonitor\n"


def tiny_recipe(folder: Path, overlays: Mapping[str, str]) -> Path:
    """Write `folder/recipes/tiny` with a base and overlays by name; return it."""
    recipe = folder / "recipes" / "tiny"
    recipe.mkdir(parents=True)
    for name, text in {"base": BASE + MONITOR, **overlays}.items():
        (recipe / f"{name}.yaml").write_text(text)
    return recipe


def refused(words, capsys) -> str:
    with pytest.raises(SystemExit):
        main(words)
    return capsys.readouterr().err
