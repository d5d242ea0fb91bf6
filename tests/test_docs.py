"""The Python in the README and in docs/ runs, with the names that a reader would have."""

import os
import re
from pathlib import Path

import pytest
import torch
from small_training import GrowingData, PlainData, PlainModule

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
OWN_TEST = {"huggingface", "your_own_training"}  # test_huggingface_page.py, test_your_own_training.py
REPOSITORY = "lightning-fire/lightning-fire"
ABSOLUTE = re.compile(rf"https://(github\.com/{REPOSITORY}/blob|raw\.githubusercontent\.com/{REPOSITORY})/main/")
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


def links_of(page: Path) -> list[str]:
    """Return what a page links to or shows, without anchors; addresses of this repository as paths in it."""
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text())]
    return [ABSOLUTE.sub(f"{os.path.relpath(ROOT, page.parent)}/", link) for link in links]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_between_pages_exist(page):
    for target in links_of(page):
        assert re.match("https?:", target) or (page.parent / target).exists(), f"{page.name} links to {target}"


def test_links_of_the_readme_hold_on_every_site():
    """A package index shows it without the files beside it."""
    assert not re.findall(r"\]\((?!https:|#)", (ROOT / "README.md").read_text())
