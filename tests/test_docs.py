"""The Python in the README and in docs/ runs, with the names that a reader would have."""

import re
from pathlib import Path

import pytest
import torch
from small_training import GrowingData, PlainData, PlainModule

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
OWN_TEST = {"huggingface", "your_own_training"}  # test_huggingface_page.py, test_your_own_training.py
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


def test_there_is_something_to_run():
    assert sum(len(BLOCK.findall(page.read_text())) for page in PAGES) >= 8


@pytest.mark.filterwarnings("ignore:You passed in a `val_dataloader` but have no `validation_step`")
@pytest.mark.parametrize("page", [page for page in PAGES if page.stem not in OWN_TEST], ids=lambda page: page.stem)
def test_code_runs(page, monkeypatch, tmp_path):
    import lightning.pytorch as pl

    import lightning_fire
    from lightning_fire import FIRECallback

    monkeypatch.chdir(tmp_path)
    quiet = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_checkpointing": False}

    class QuietTrainer(pl.Trainer):
        def __init__(self, **options):
            options["max_epochs"] = min(options.get("max_epochs", 1), 20)
            super().__init__(**{**quiet, "enable_model_summary": False, **options})

    names = {
        "Trainer": QuietTrainer,
        "FIRECallback": FIRECallback,
        "lightning_fire": lightning_fire,
        "weight": torch.randn(4, 3),
        "model": (model := PlainModule()),
        "optimizer": torch.optim.Adam(model.parameters()),
        "datamodules": [PlainData(seed) for seed in range(2)],
        "datamodule": GrowingData(),
    }
    for code in BLOCK.findall(page.read_text()):
        code = code.replace("from lightning.pytorch import Trainer\n", "")
        exec(compile(code, str(page), "exec"), names)


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+\.md)", page.read_text()):
            assert (page.parent / target).is_file(), f"{page.name} links to {target}"
