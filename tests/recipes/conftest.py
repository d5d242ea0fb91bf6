"""Shared by the tests of recipes, whose networks are large."""

import gc

import pytest


@pytest.fixture(autouse=True)
def _free_the_network_of_each_test():
    yield
    gc.collect()
