"""Every method in a plain PyTorch loop, without lightning; golden runs hold its weights."""

import copy
import os
import subprocess
import sys

import plain_loops
import pytest
import torch
from plain_loops import METHODS, NAMES, Loop
from torch.utils._pytree import tree_flatten

from lightning_fire import METHODS as EVERY


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> dict[str, dict[str, torch.Tensor]]:
    """The weights of all methods, from a process in which lightning and torchvision cannot be imported."""
    path = tmp_path_factory.mktemp("plain") / "weights.pt"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, plain_loops.__file__, str(path)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return torch.load(path, weights_only=True)


def test_every_method_is_here():
    assert {type(method) for method in METHODS.values()} == set(EVERY)


OF_ANOTHER_STRUCTURE = {"plasticity_injection"}  # the model with an injection has more parameters


@pytest.fixture(scope="module")
def vanilla() -> dict[str, torch.Tensor]:
    return Loop().run()


@pytest.mark.parametrize("name", NAMES)
def test_a_plain_loop_without_lightning_is_changed_by_its_method(name, plain, vanilla):
    assert any(not torch.equal(plain[name][key], value) for key, value in vanilla.items() if key in plain[name])


@pytest.mark.parametrize("name", sorted({*NAMES} - OF_ANOTHER_STRUCTURE))
def test_a_plain_loop_resumes_to_equal_weights(name, plain):
    """Statistics, draws and weights from their state_dicts, in the middle of a training, between two events."""
    first, second = Loop(name), Loop(name)
    first.run(until=3)
    states = copy.deepcopy(first.states())
    second.load(states)
    (leaves, structure), (others, other_structure) = tree_flatten(states), tree_flatten(second.states())
    assert structure == other_structure
    for a, b in zip(leaves, others, strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
    second.epoch = first.epoch
    resumed = second.run()
    assert all(torch.equal(resumed[key], value) for key, value in plain[name].items())
