"""Shared by all tests: a known seed, one thread (test processes share the machine), helper modules on the path."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent / "support"))


@pytest.fixture(autouse=True)
def _one_thread_and_a_known_seed():
    torch.set_num_threads(1)
    torch.manual_seed(0)
