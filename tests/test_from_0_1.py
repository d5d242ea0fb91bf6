"""Everything that the page "From 0.1 to 0.2" gives as its new form exists, with these arguments.

Its commands, YAML and Python blocks are tested as those of every page.
"""

import importlib
import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.wrappers import AtariPreprocessing
from torch import nn
from torchmetrics import MeanMetric

import lightning_fire

PAGE = Path(__file__).parents[1] / "docs" / "from_0_1.md"
CODE = re.search(r"^## Code$(.*?)^## ", PAGE.read_text(), re.DOTALL | re.MULTILINE)[1]
CELLS = re.findall(r"^\| .+ \| (.+) \|$", CODE, re.MULTILINE)
NEW = [span for cell in CELLS for span in re.findall("`(.+?)`", cell)]
MODULES = ("checkpoints", "data", "experience", "functional", "integrations", "methods", "nets", "where")


def of_the_reader() -> dict[str, Any]:
    """Return what the page takes for given: the public names, and a model in training."""
    names = {name: importlib.import_module(f"lightning_fire.{name}") for name in MODULES}
    names |= {name: getattr(lightning_fire, name) for name in lightning_fire.__all__}
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    inputs = torch.randn(5, 4)
    model(inputs).sum().backward()
    return names | {
        "model": model,
        "optimizer": torch.optim.Adam(model.parameters()),
        "forward": lambda: model(inputs),
        "weight": torch.eye(3),
        "selection": lightning_fire.Weights().select(model),
        "observation_space": gymnasium.spaces.Box(0, 1, (4,), np.float32),
        "action_space": gymnasium.spaces.Discrete(2),
        "lightning_fire": lightning_fire,
        "MeanMetric": MeanMetric,
        "AtariPreprocessing": AtariPreprocessing,
        "Selection": lightning_fire.where.Selection,
    }


def test_the_page_has_its_rows():
    assert len(NEW) >= 35


@pytest.mark.filterwarnings("ignore::UserWarning")  # of a network without normalization, of averages
@pytest.mark.parametrize("code", dict.fromkeys(NEW))
def test_what_the_page_gives_as_new_is_there(code):
    names = of_the_reader()
    if match := re.match(r"integrations\.(\w+)", code):
        importlib.import_module(f"lightning_fire.{match[0]}")
    eval(code, names)
