"""The list `METHODS` has every method, and what is made for readers has every method of it."""

import pkgutil
import re

import pytest
import yaml
from pages import ROOT

import lightning_fire
from lightning_fire import METHODS, methods
from lightning_fire.methods import EventMethod, StepMethod

NAVIGATION = (ROOT / "mkdocs.yml").read_text()


def test_every_public_method_is_in_it():
    public = [kind for kind in vars(methods).values() if isinstance(kind, type)]
    bases = {EventMethod, StepMethod, methods.Method}
    assert {kind for kind in public if issubclass(kind, methods.Method)} - bases == set(METHODS)
    assert len({kind.name for kind in METHODS}) == len(METHODS)


def test_the_table_of_the_reference_has_every_method_with_its_key_and_page():
    """Also the two callbacks and the two optimizers that are compared with them."""
    index = ROOT / "docs" / "reference" / "index.md"
    row = r"^\| `(\w+)` \| `(\w+)` \| (event|step) \| \[.+\]\(([^#)]+)#?([\w-]*)\) \| .+ \|$"
    rows = re.findall(row, index.read_text(), re.MULTILINE)
    others = {"FeatureRank": "step", "HareAndTortoise": "event", "Muon": "step", "UPGD": "step"}
    acts = {kind.__name__: "event" if issubclass(kind, EventMethod) else "step" for kind in METHODS} | others
    assert {name: when for _, name, when, *_ in rows} == acts and len(rows) == len(acts)
    recipes = [yaml.safe_load(path.read_text()) for path in ROOT.glob("recipes/**/*.yaml")]
    uses = [(key, str(layer)) for recipe in recipes for key, layer in (recipe.get("methods") or {}).items()]
    for key, name, _, page, anchor in rows:
        assert any(key == used and f"{name}'" in layer for used, layer in uses), f"no recipe has {key}: {name}"
        headings = re.findall("^#+ (.+)$", (index.parent / page).read_text(), re.MULTILINE)
        anchors = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
        assert not anchor or anchor in anchors, f"{page} has no #{anchor}"


@pytest.mark.parametrize("method", METHODS)
def test_each_is_exported_and_has_a_page(method):
    assert method.__name__ in lightning_fire.__all__
    assert issubclass(method, EventMethod) != issubclass(method, StepMethod)
    modules = [module.name for module in pkgutil.iter_modules(methods.__path__)]
    assert method.__module__.rpartition(".")[2] in modules
    pages = [page for page in ROOT.glob("docs/*.md") if f"{method.__name__}(" in page.read_text()]
    assert any(page.name in NAVIGATION for page in pages)
