"""The list `METHODS` has every method, and what is made for readers has every method of it."""

import pkgutil

import pytest
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


@pytest.mark.parametrize("method", METHODS)
def test_each_is_exported_and_has_a_page(method):
    assert method.__name__ in lightning_fire.__all__
    assert issubclass(method, EventMethod) != issubclass(method, StepMethod)
    modules = [module.name for module in pkgutil.iter_modules(methods.__path__)]
    assert method.__module__.rpartition(".")[2] in modules
    pages = [page for page in ROOT.glob("docs/*.md") if f"{method.__name__}(" in page.read_text()]
    assert any(page.name in NAVIGATION for page in pages)
