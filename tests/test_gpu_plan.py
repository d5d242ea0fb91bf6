"""`benchmarks/gpu.py`: its plan, the execution of parts within their limits, and the tables of their files."""

import argparse
import importlib.util
import json
import re
import runpy
import sys
import time
from pathlib import Path

import pytest

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
def parts(gpu, tmp_path, monkeypatch):
    """Return a function that makes parts of some Python, which knows `result` and how often it has `begun`."""
    monkeypatch.setattr(gpu, "SHORTEST", 0)

    def make(limit, **codes):
        made = {}
        for name, code in codes.items():
            head = (
                "import json, subprocess, sys, time\n"
                "from pathlib import Path\n"
                f"result, calls = Path(sys.argv[1]), Path({str(tmp_path)!r}) / '{name}.calls'\n"
                "begun = int(calls.read_text()) + 1 if calls.is_file() else 1\n"
                "calls.write_text(str(begun))\n"
            )
            script = tmp_path / f"{name}.py"
            script.write_text(head + code)
            made[name] = gpu.Part(limit, f"{script} RESULT", "")
        monkeypatch.setattr(gpu, "PARTS", made)
        return list(made)

    return make


def test_the_plan_needs_no_gpu_and_two_calls_are_enough(gpu, tmp_path, capsys):
    gpu.main(["--dry-run", "--output", str(tmp_path)])
    text = capsys.readouterr().out
    rows = re.findall(r"^\| (\w+) \| (\d+) s \| `python (.+)` \|$", text, re.MULTILINE)
    assert [name for name, *_ in rows] == list(gpu.PARTS)
    for name, _, command in rows:
        assert str(tmp_path / f"{name}.{gpu.PARTS[name].suffix}") in command
    assert sum(int(limit) for _, limit, _ in rows) <= 2 * (590 - gpu.SPARE)
    assert len(rows) + 1 <= 8  # files, with the log
    (tmp_path / "event_cost.json").write_text("{}")
    gpu.main(["--dry-run", "--output", str(tmp_path)])
    assert "| event_cost (done) |" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("small", [False, True])
def test_benchmarks_take_the_options_of_the_plan(gpu, tmp_path, monkeypatch, small):
    class ParsedError(Exception):
        pass

    def parse(self, words=None, namespace=None):
        if not self.parse_known_args(words)[1]:
            raise ParsedError

    modules = set(sys.modules)
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse)
    for name in gpu.PARTS:
        _, script, *words = gpu.words_of(name, tmp_path, small)
        if script == "-m":
            continue
        monkeypatch.setattr(sys, "argv", [script, *words])
        with pytest.raises(ParsedError):
            runpy.run_path(str(FOLDER.parent / script), run_name="__main__")
    for name in set(sys.modules) - modules:
        if Path(getattr(sys.modules[name], "__file__", None) or "").parent == FOLDER:
            del sys.modules[name]


def test_without_a_gpu_nothing_begins(gpu, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gpu.torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        gpu.main(["--output", str(tmp_path / "out")])
    assert "there is no GPU; --dry-run shows the plan, --device cpu tries it in small" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


QUICK = "result.write_text(json.dumps({'device': 'a card', 'ways': {'ours': {'seconds': 0.25, 'bytes': 3e6}}}))"
BROKEN = "sys.exit('no such kernel')"
LONG = "if begun == 1: subprocess.run(['sh', '-c', f'sleep 6; touch {result}.survived'])\nresult.write_text('{}')"


@pytest.mark.slow
def test_a_second_call_goes_on_where_the_first_ended(gpu, parts, tmp_path, capsys):
    names, output = parts(2, quick=QUICK, broken=BROKEN, long=LONG), tmp_path / "out"

    def call():
        gpu.main(["--device", "cpu", "--output", str(output), "--only", *names])
        return [int((tmp_path / f"{name}.calls").read_text()) for name in names], capsys.readouterr()

    calls, printed = call()
    assert calls == [1, 1, 1]
    assert "broken: exit 1" in printed.err and "long: ended by the limit" in printed.err
    assert "no such kernel" in (output / "log.txt").read_text()
    assert "| ours | 0.25 | 3 |" in printed.out
    assert "Left: broken, long; the same command continues, see log.txt." in printed.out
    calls, printed = call()
    assert calls == [1, 2, 2]
    assert "Left: broken;" in printed.out
    time.sleep(4)
    assert not list(output.glob("*.survived"))  # what the long one had started was ended with it


@pytest.mark.slow
def test_a_call_ends_in_time(gpu, parts, tmp_path, capsys):
    names = parts(60, endless="time.sleep(60)", never="")
    began = time.monotonic()
    gpu.main(["--device", "cpu", "--output", str(tmp_path), "--only", *names, "--seconds", str(gpu.SPARE + 2)])
    assert time.monotonic() - began < 2 + gpu.SPARE
    assert not (tmp_path / "never.calls").exists()
    assert "Left: endless, never;" in capsys.readouterr().out


def test_tables(gpu, tmp_path):
    result = {"device": "NVIDIA H100 80GB HBM3", "nets": {"gpt-2": {"loop": {"tokens_a_second": 100000.0}}}}
    (tmp_path / "language_speed.json").write_text(json.dumps(result))
    rows = {"8 × 8, 1.6e4, float32": {"products_ms": 2.0}, "8 × 8, 10, float32": {}}
    misses = {"misses": {"random": [1, 100], "trained": [2, 50]}, "rows": rows}
    (tmp_path / "exact_cost.json").write_text(json.dumps(misses))
    (tmp_path / "checks.xml").write_text(
        '<testsuites><testsuite tests="3" skipped="1" time="4.2"><testcase classname="a" name="b"/>'
        '<testcase classname="a" name="c"><failure/></testcase><testcase><skipped/></testcase></testsuite></testsuites>'
    )
    text = gpu.tables_of(tmp_path)
    assert "| loop | 100,000 | 0.08668 |" in text  # 8.57e8 operations a token, of 989e12 a second
    assert "1 passed, 1 skipped, 1 failed, in 4 s.\n- failed: `a.c`" in text
    assert "| 8 × 8, 1.6e4, float32 | 2 |" in text and "8 × 8, 10" not in text
    assert "decomposition: 3 of 150 matrices (random 1 of 100, trained 2 of 50)" in text


def test_tables_replace_those_between_the_marks(gpu):
    tables = sys.modules["gpu_tables"]
    page = f"before\n{tables.BEGIN}old\n{tables.END}after\n"
    assert tables.written(page, "new\n") == f"before\n{tables.BEGIN}new\n{tables.END}after\n"
    assert tables.PAGE.read_text().count(tables.BEGIN) == tables.PAGE.read_text().count(tables.END) == 1
