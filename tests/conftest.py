"""Settings of all tests: a fixed seed, one thread per test process, helper modules on the path."""

import gc
import multiprocessing
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent / "support"))
multiprocessing.get_start_method()  # is fixed by this: torchrl would set "spawn", and each process take seconds


@pytest.fixture(autouse=True)
def _one_thread_and_a_known_seed():
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _own_modules_of_a_test(tmp_path_factory):
    """Forget what a test has imported from its folder: the next may write another `mine.py`."""
    before = set(sys.modules)
    yield
    folder = str(tmp_path_factory.getbasetemp())
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(folder):
            del sys.modules[name]


@pytest.fixture(autouse=True)
def _no_open_figures():
    """Close the figures of a test: matplotlib warns of more than 20 in whichever test opens one more."""
    yield
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        pyplot.close("all")


def pytest_collection_modifyitems(items):
    """Begin the longest tests first, by the seconds of their `slow` marks: else one process ends alone with them."""

    def seconds(item):
        mark = item.get_closest_marker("slow")
        return (mark.args or [1])[0] if mark else 0

    items.sort(key=seconds, reverse=True)


def pytest_collection_finish():
    """Leave what was imported out of garbage collections: these become cheap, and full ones frequent.

    Networks of finished tests, in reference cycles with their trainers, would pile up to gigabytes otherwise.
    """
    gc.collect()
    gc.freeze()
    gc.collect()


def pytest_sessionfinish():
    gc.unfreeze()  # at exit, extension modules report what is still alive
