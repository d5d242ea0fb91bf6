"""`benchmarks/gpu.py`: its plan, and the execution of other commands in slices."""

import argparse
import importlib.util
import json
import re
import runpy
import sys
from pathlib import Path

import pytest

from lightning_fire.experiments.compare import parser
from lightning_fire.recipe.recipe import extended, find_recipe

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    spec = importlib.util.spec_from_file_location("gpu", FOLDER / "gpu.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "gpu", module)
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop("gpu_tables")


@pytest.fixture
def step(gpu, tmp_path, monkeypatch):
    """Return a function that makes a step of some Python, which knows `folder` and how often it was `begun`."""
    monkeypatch.setattr(gpu, "LEAST", 0.001)
    monkeypatch.setattr(gpu, "AGAIN", 0.001)

    def step(name, code, runs=frozenset()):
        head = (
            "import json, subprocess, sys, time\n"
            "from pathlib import Path\n"
            "folder, minutes = Path(sys.argv[1]), float(sys.argv[2])\n"
            f"calls = folder / '{name}.calls'\n"
            "begun = int(calls.read_text()) + 1 if calls.is_file() else 1\n"
            "calls.write_text(str(begun))\n"
        )
        command = (sys.executable, "-c", head + code, str(tmp_path), gpu.LEFT)
        return gpu.Step(name, command, 0.001, tmp_path / f"{name}.{'csv' if runs else 'json'}", runs)

    return step


def test_the_plan_fits_into_its_slices(gpu, tmp_path):
    steps = gpu.plan(tmp_path, "data", 3)
    dealt = gpu.slices(steps, 10)
    assert all(sum(minutes for _, minutes in parts) <= 10 for parts in dealt)
    for step in steps:
        parts = [minutes for parts in dealt for other, minutes in parts if other == step]
        assert sum(parts) == pytest.approx(step.minutes + gpu.AGAIN * (len(parts) - 1))
        assert len(parts) == 1 or step.runs
    assert [step for step in dict.fromkeys(step for parts in dealt for step, _ in parts)] == steps
    with pytest.raises(ValueError, match=r"event_cost takes some 4 minutes, more than the 3\.0 of a slice"):
        gpu.slices(steps, 3)


def test_a_dry_run_prints_the_plan_without_a_gpu(gpu, tmp_path, capsys):
    gpu.main(["--dry-run", "--output", str(tmp_path)])
    text = capsys.readouterr().out
    rows = re.findall(r"^\| (\d+) \| (.+) \| ([\d.]+) \|$", text, re.MULTILINE)
    assert [int(number) for number, *_ in rows] == list(range(1, len(rows) + 1))
    for _, names, minutes in rows:
        assert sum(float(name.split()[1]) for name in names.split(", ")) == pytest.approx(float(minutes), abs=0.11)
        assert float(minutes) <= 10
    (total,) = re.findall(r"In all ([\d.]+) minutes, in (\d+) slices", text)
    assert float(total[0]) == pytest.approx(sum(float(minutes) for *_, minutes in rows), abs=0.3)
    assert int(total[1]) == len(rows)
    for step in gpu.plan(tmp_path, "data", 3):
        assert f"\n- {step.name}, {step.minutes:.1f} minutes: `python " in text


def test_what_is_done_is_left_out_of_the_plan(gpu, tmp_path):
    for name in gpu.BENCHMARKS:
        (tmp_path / f"{name}.json").write_text("{}")
    (tmp_path / "warm_start").mkdir()
    rows = [f"{method},0,0.9" for method in gpu.METHODS]
    (tmp_path / "warm_start" / "results.csv").write_text("\n".join(["method,seed,final", *rows]))
    left = [step.name for step in gpu.plan(tmp_path, "data", 3) if not step.done]
    assert left == ["warm_start_seed1", "warm_start_seed2"]


def test_commands_name_options_and_methods_that_there_are(gpu, tmp_path):
    for step in gpu.plan(tmp_path, "data", 2):
        if step.runs:
            options = parser().parse_args([word.replace(gpu.LEFT, "9.5") for word in step.command[4:]])
            assert set(options.methods) <= {"vanilla", *find_recipe(options.recipe).methods}
            assert extended(find_recipe(options.recipe), options.config)[1]
            assert options.max_minutes == 9.5


@pytest.mark.slow
def test_benchmarks_take_the_options_of_the_plan(gpu, tmp_path, monkeypatch):
    class ParsedError(Exception):
        pass

    def parse(self, words=None, namespace=None):
        if not self.parse_known_args(words)[1]:
            raise ParsedError

    modules = set(sys.modules)
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse)
    for step in gpu.plan(tmp_path, "data", 0):
        monkeypatch.setattr(sys, "argv", list(step.command[1:]))
        with pytest.raises(ParsedError):
            runpy.run_path(step.command[1], run_name="__main__")
    for name in set(sys.modules) - modules:
        if Path(getattr(sys.modules[name], "__file__", None) or "").parent == FOLDER:
            del sys.modules[name]


@pytest.mark.parametrize(
    ("there", "words", "message"),
    [
        (False, [], "there is no GPU; --dry-run shows the plan"),
        (True, ["--root", "nowhere"], "nowhere does not hold FashionMNIST/raw"),
        (False, ["--minutes", "2"], "projection_cost takes some 3 minutes, more than the 1.7 of a slice"),
    ],
)
def test_errors(gpu, tmp_path, monkeypatch, capsys, there, words, message):
    monkeypatch.setattr(gpu.torch.cuda, "is_available", lambda: there)
    with pytest.raises(SystemExit):
        gpu.main(["--output", str(tmp_path / "out"), *words])
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


QUICK = """
ways = {'ours': {'seconds': 0.25, 'bytes': 3e6}}
(folder / 'quick.json').write_text(json.dumps({'device': 'a card', 'ways': ways}))
"""
BROKEN = "sys.exit('no such kernel')"
LONG = """
if begun == 1:
    subprocess.run(['sh', '-c', f'sleep 4; touch {folder}/survived'])
(folder / 'long.json').write_text('{}')
"""
COMPARISON = """
if begun < 3:
    time.sleep(60 * minutes)
    sys.exit('stopped: the same command goes on')
(folder / 'table.txt').write_text('method  final\\n─────────────\\nfire    0.900 ± 0.010\\n')
(folder / 'comparison.csv').write_text('method,seed\\nfire,0\\n')
"""


@pytest.mark.slow
def test_an_interrupted_plan_continues(gpu, step, tmp_path):
    steps = [
        step("quick", QUICK),
        step("broken", BROKEN),
        step("long", LONG),
        step("comparison", COMPARISON, frozenset({("fire", "0")})),
    ]

    def calls():
        return [int(path.read_text()) if (path := tmp_path / f"{s.name}.calls").is_file() else 0 for s in steps]

    gpu.work(steps, tmp_path, 0.05)
    assert calls() == [1, 1, 1, 0]  # the time was over during the third
    assert "no such kernel" in (tmp_path / "broken.failed").read_text()
    text = gpu.report(steps, tmp_path)
    assert "| ours | 0.25 | 3 |" in text
    assert "Failed" in text and "broken" in text
    assert "Left: long, comparison; 0 minutes at most. The same command goes on." in text
    gpu.work(steps, tmp_path, 0.05)
    assert calls() == [1, 1, 2, 1]
    assert "Left: comparison;" in gpu.report(steps, tmp_path)
    for expected in (2, 3, 3):
        gpu.work(steps, tmp_path, 0.03)
        assert calls() == [1, 1, 2, expected]
    text = gpu.report(steps, tmp_path)
    assert "| method | final |\n| --- | --- |\n| fire | 0.900 ± 0.010 |" in text
    assert "Nothing is left." in text
    (tmp_path / "broken.failed").unlink()
    gpu.work(steps, tmp_path, 0.05)
    assert calls() == [1, 2, 2, 3]
    assert not (tmp_path / "survived").exists()  # by now, what the third had started would have made it


def test_a_comparison_that_fails_early_is_not_retried(gpu, step, tmp_path):
    steps = [step("comparison", "sys.exit('1 of 6 runs failed')", frozenset({("fire", "0")})), step("quick", QUICK)]
    gpu.work(steps, tmp_path, 0.5)
    assert "1 of 6 runs failed" in (tmp_path / "comparison.failed").read_text()
    assert steps[1].done


def test_a_step_longer_than_a_slice_does_not_stop_the_others_for_ever(gpu, step, tmp_path):
    steps = [step("endless", "time.sleep(60)"), step("quick", QUICK)]
    gpu.work(steps, tmp_path, 0.02)
    gpu.work(steps, tmp_path, 0.05)
    assert "took longer than a slice" in (tmp_path / "endless.failed").read_text()
    assert steps[1].done


def test_the_fraction_of_a_cards_peak(gpu, tmp_path):
    result = {"device": "NVIDIA H100 80GB HBM3", "nets": {"gpt-2": {"loop": {"tokens_a_second": 100000.0}}}}
    (step,) = [step for step in gpu.plan(tmp_path, "data", 1) if step.name == "language_speed"]
    step.result.write_text(json.dumps(result))
    text = gpu.of_benchmark(step.result)
    assert "| loop | 100,000 | 0.08668 |" in text  # 8.57e8 operations a token, of 989e12 a second
