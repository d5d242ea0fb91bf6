"""Tests for one GPU. With LIGHTNING_FIRE_DEVICE=cpu they run on the CPU in its place, to be tried themselves."""

import os
from pathlib import Path

import pytest
import torch

DEVICE = os.environ.get("LIGHTNING_FIRE_DEVICE", "cuda")


def pytest_collection_modifyitems(items):
    absent = pytest.mark.skipif(DEVICE == "cuda" and not torch.cuda.is_available(), reason="needs a CUDA device")
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            item.add_marker(absent)


@pytest.fixture
def device(monkeypatch):
    """Return the device under test; its products of float32 are not in TF32."""
    if DEVICE == "cuda":
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    return DEVICE
