"""The example of twelve months, shortened: its table, and that a second run trains nothing again."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from lightning.pytorch import callbacks

EXAMPLE = Path(__file__).parents[1] / "examples" / "twelve_months.py"


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(callbacks, "EMAWeightAveraging"), reason="came with Lightning 2.6")
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
