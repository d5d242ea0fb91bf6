"""Each public function has an example, which `--doctest-modules` runs."""

import inspect

import pytest

from lightning_fire import functional

FUNCTIONS = [name for name in functional.__all__ if inspect.isfunction(getattr(functional, name))]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_public_functions_have_an_example(name):
    assert ">>> " in getattr(functional, name).__doc__


def test_there_are_functions():
    assert len(FUNCTIONS) > 30
