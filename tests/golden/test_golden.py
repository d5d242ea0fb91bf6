"""Trainings with every method have the same results as before, to the last bit: see `golden`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .__main__ import NOTHING_COMPARED, STORED

ROOT = Path(__file__).parents[2]
PARTS = 2  # processes, which run in parallel on two cores
WATCHES = ("nothing", "plasticity_monitor", "measure_plasticity")  # do not change a training


def found_in(part: int) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "tests.golden", "--check", "--part", str(part), str(PARTS)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.mark.slow(30)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_training_has_the_digests_that_are_stored(part):
    """If a change is meant to change them: `python -m tests.golden` writes them again."""
    run = found_in(part)
    if run.returncode == NOTHING_COMPARED:
        pytest.skip(run.stdout)
    assert run.returncode == 0, f"{run.stdout}\n{run.stderr[-3000:]}"


def test_a_difference_is_named():
    from .digests import compared, differences, digest

    whole = {"weights": "a", "log fire/sfe": "0.5 b"}
    resumed = compared(whole, whole, {"weights": "c", "log fire/event": "1 d"}, "resumed")
    assert differences(resumed, {**whole, "resumed, weights": "a"}) == [
        "resumed, weights: stored a, now c",
        "resumed, log fire/sfe: stored nothing, now nothing",
        "resumed, log fire/event: stored nothing, now 1 d",
    ]
    assert digest({"a": 1.0, "b": 2}) == digest({"b": 2, "a": 1.0}) != digest({"a": 1.0, "b": 2.5})


def test_methods_change_their_trainings_and_only_they():
    """A golden run in which a method never acts would not notice a change of it."""
    from .cases import CASES

    stored = {name: found for cases in json.loads(STORED.read_text()).values() for name, found in cases.items()}
    assert set(stored) == set(CASES)
    assert not [name for name, found in stored.items() if "error" in found]
    for name, case in CASES.items():
        if case.like:
            same = all(stored[name][key] == stored[case.like][key] for key in ("weights", "buffers", "optimizer 0"))
            assert same == name.partition("/")[2].startswith(WATCHES), name
