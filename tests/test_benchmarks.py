"""Every benchmark runs on small sizes, and prints and writes a number for each of its rows."""

import json
import logging
import math
import re
import runpy
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[1] / "benchmarks"
SCRIPTS = {path.stem for path in FOLDER.glob("*.py") if "__main__" in path.read_text()}
STEP = {"plain", "l2_init", "parseval", "continual_backprop", "snr", "readiness and critical sharpness", "redo, idle"}
LOGGING = {
    "event: FIRE, DfI and SFE",
    "event: λ_max, twice",
    "event: histograms, twice",
    "monitor: weights, 100 epochs",
    "monitor: data, 196 looks",
}
PIPELINE = {"ours", "published, 0 workers", "published, 2 workers"}
# script: words of a small run, key of its rows in the result, their names
CASES = {
    "dash_cost": (
        "--batch 4 --batches 30 --rounds 1",
        "ways",
        {"ours", "published, all 30 batches", "published, the same 26", "the gradients alone"},
    ),
    "data_pipeline": (
        "--samples 600 --rounds 1 --workers 0 2 --only fashion-mnist",
        "shapes/fashion-mnist",
        PIPELINE,
    ),
    "event_at_scale": ("--models tiny --ranks 2 3 --shrink 2", "models", {"tiny"}),
    "event_by_ranks": ("--model dqn --rounds 1 --ranks 2", "ranks", {"2 ranks"}),
    "environment_processes": ("--only cartpole --steps 5 --rounds 1", "environments", {"cartpole"}),
    "epoch_speed": (
        "--only small --rounds 1 --epochs 1 --batch 4 --batches 2",
        "nets/small",
        {"loop", "Lightning", "with FIRE and TensorBoard", "as the recipes"},
    ),
    "event_cost": ("--net small --batch 2 --rounds 1 --methods step fire", "medians", {"step", "fire"}),
    "event_parts": (
        "--net small --batch 4 --rounds 1",
        "medians",
        {"training step", "published loop", "event", "other", "select", "read", "project", "measure", "write", "log"}
        | {"λ_max", "histograms"},
    ),
    "exact_cost": (
        "--shapes 8x6 --rounds 1 --matrices 20",
        "rows",
        {
            f"8 × 6, {condition}, {dtype}"
            for condition in ("10", "1.6e4", "1e8", "half the rank")
            for dtype in ("float32", "float64")
        },
    ),
    "idle_cost": ("--net small --steps 20", None, {"small"}),
    "interval_coverage": (
        "--repetitions 50 --resamples 50",
        "coverage",
        {f"{distribution}, {seeds} seeds" for distribution in ("normal", "skewed") for seeds in (3, 5, 10)},
    ),
    "language_event": (
        "--net small --events 2 --batch 2 --block 8",
        None,
        {"parameters", "event", "training", "share"},
    ),
    "language_speed": (
        "--only small --rounds 1 --steps 2 --batch 2 --block 8",
        "nets/small",
        {"loop", "Lightning", "as the recipes", "with an event"},
    ),
    "large_event": ("--width 16 --blocks 1", "rows", {"1 blocks"}),
    "logging_cost": ("--net small --batch 2 --steps 1", "shares", LOGGING),
    "one_billion": (
        "--depth 1 --dim 64 --heads 2 --vocabulary 64 --block 16 --ranks 2",
        "components",
        {"parameters", "gradients", "AdamW", "gathered", "logits", "activations", "total", "event, memory"}
        | {"activations, checkpointed", "total, checkpointed", "step, compute", "step, checkpointed"}
        | {"step, communication", "event, compute", "event, communication"},
    ),
    "projection_cost": ("--only dqn --rounds 1 --steps 2", "models", {"dqn"}),
    "replay_speed": (
        "--only cartpole --rounds 1 --steps 20 --batch 4 --initial 10",
        "nets/cartpole",
        {"loop", "loop with logs", "bare", "Lightning", "as the recipes"},
    ),
    "stable_baselines": (
        "--only cartpole --of lightning-fire --seeds 1 --every 256 --episodes 1",
        "tasks/cartpole",
        {"lightning-fire"},
    ),
    "step_cost": ("--net small --batch 2 --steps 1 --rounds 1", "ratios", STEP),
}


def numbers(value):
    """All numbers in nested lists and dictionaries."""
    if isinstance(value, dict | list):
        return [number for part in (value.values() if isinstance(value, dict) else value) for number in numbers(part)]
    return [value] if isinstance(value, int | float) else []


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Return a function that runs a script in this process, and returns what it printed and what it wrote."""
    names = ("lightning.pytorch", "lightning.fabric", "lightning_fire")
    levels = {name: logging.getLogger(name).level for name in names}
    modules = set(sys.modules)

    def run(name, words):
        path, result = FOLDER / f"{name}.py", tmp_path / "result.json"
        monkeypatch.syspath_prepend(FOLDER)
        monkeypatch.setattr(sys, "argv", [str(path), *words.split(), "--json", str(result)])
        runpy.run_path(str(path), run_name="__main__")
        *table, last = capsys.readouterr().out.strip().splitlines()
        assert json.loads(last) == json.loads(result.read_text())
        return table, json.loads(last)

    yield run
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    for name in set(sys.modules) - modules:
        if Path(getattr(sys.modules[name], "__file__", None) or "").parent == FOLDER:
            del sys.modules[name]


def test_every_benchmark_has_a_case():
    assert {*CASES, "gpu", "gpu_tables", "make_small_fashion_mnist"} == SCRIPTS  # test_gpu_plan.py


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_small_run_prints_and_writes_every_row(run, name):
    words, key, rows = CASES[name]
    table, result = run(name, words)
    assert result["command"] == f"python benchmarks/{name}.py {words}"
    assert result["threads"] == 1
    for part in key.split("/") if key else ():
        result = result[part]
    if key:
        assert set(result) == rows
        assert all(numbers(row) for row in result.values())
    found = [number for number in numbers(result) if not isinstance(number, bool)]
    assert found
    assert all(math.isfinite(number) and number > 0 for number in found)
    for row in rows:
        (line,) = [line for line in table if re.search(rf"(^ *|  ){re.escape(row)}(:|  )", line)]
        assert any(digit in line.replace(row, "") for digit in "123456789")


def test_the_interval_of_compare_has_its_nominal_coverage(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    coverage = runpy.run_path(str(FOLDER / "interval_coverage.py"))["coverage"]
    found = {seeds: coverage("normal", seeds, repetitions=8000, resamples=500) for seeds in (3, 5, 10)}
    error = math.sqrt(0.95 * 0.05 / 8000)
    assert [of["t"] for of in found.values()] == pytest.approx([0.95] * 3, abs=3 * error)
    assert found[3]["bootstrap"] == pytest.approx(0.75, abs=0.02)  # unless all three are on one side: 1 - 2 / 2³
