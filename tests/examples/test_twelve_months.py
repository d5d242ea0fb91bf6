"""The example of twelve months, shortened: its table, and that a second run trains nothing again."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from lightning.pytorch import callbacks
from pages import script

pytestmark = pytest.mark.skipif(not hasattr(callbacks, "EMAWeightAveraging"), reason="came with Lightning 2.6")

EXAMPLE = Path(__file__).parents[2] / "examples" / "twelve_months.py"


@pytest.fixture
def example(monkeypatch):
    """The example as a module, with months of one epoch on 60 images."""
    module = script("examples/twelve_months.py")
    for name, value in {"TRAIN": 60, "HELD_OUT": 40, "EPOCHS": 1}.items():
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(module, "logging", SimpleNamespace(getLogger=logging.Logger, ERROR=logging.ERROR))
    return module


def test_a_method_acts_in_every_month_but_the_first(example, tmp_path):
    for method in ("going_on", "fire"):
        for month in range(2):
            (tmp_path / method / "seed0" / f"month{month}").mkdir(parents=True)
            example.run_month(method, 0, month, tmp_path)
    results = {path.parts[-4::2]: json.loads(path.read_text()) for path in tmp_path.glob("*/*/*/result.json")}
    assert set(results) == {(method, f"month{month}") for method in ("going_on", "fire") for month in (0, 1)}
    for case, result in results.items():
        assert (result["after_event"] == result["after_event"]) is (case == ("fire", "month1"))  # not NaN
    assert results["going_on", "month0"]["next_month"] == results["fire", "month0"]["next_month"]
    lines = example.report(tmp_path, "going_on").splitlines()
    later = [100 * results[method, "month1"]["next_month"] for method in ("going_on", "fire")]
    assert [float(line.split(" | ")[1].split()[0]) for line in lines[2:]] == pytest.approx(later, abs=0.051)
    assert (tmp_path / "twelve_months.png").stat().st_size > 10_000


@pytest.mark.crash
def test_two_months_of_two_methods(tmp_path):
    command = [sys.executable, str(EXAMPLE), str(tmp_path), "--seeds", "2", "--months", "2", "--methods", "fire"]

    def run():
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        assert done.returncode == 0, done.stderr
        return done.stdout

    printed = run()
    assert [line.split(" | ")[0] for line in printed.splitlines()[2:4]] == ["| going_on", "| fire"]
    results = {path.parent: json.loads(path.read_text()) for path in tmp_path.glob("*/*/*/result.json")}
    assert len(results) == 8
    for result in results.values():
        assert 0.3 < result["held_out"] <= 1
        acted = (result["method"], result["month"]) == ("fire", 1)
        assert (result["after_event"] == result["after_event"]) is acted  # not NaN
    times = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*/*/result.json")}
    assert run().splitlines()[:4] == printed.splitlines()[:4]
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert (tmp_path / "twelve_months.png").stat().st_size > 10_000
