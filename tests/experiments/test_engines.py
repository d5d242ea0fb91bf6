"""Where trainings run: a fork of the server behaves as an interpreter of its own; Slurm and Ray train the same."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from multiprocessing import forkserver
from pathlib import Path

import pytest
import torch
from killed_processes import wait_for_end_of
from tiny_recipe import BASE, FIRE, tiny_recipe

from lightning_fire.cli import main
from lightning_fire.experiments.engines import Local, Resources, engine_of
from lightning_fire.experiments.runs import PARENT
from lightning_fire.experiments.training import Task, perform

linux = pytest.mark.skipif(
    sys.platform != "linux" or torch.cuda.is_available(), reason="forks are for Linux without a GPU"
)

SPY = """
import json, multiprocessing, os, pathlib, signal, sys, time, warnings
import torch
from lightning.pytorch import Callback

class Spy(Callback):
    def on_fit_end(self, trainer, pl_module):
        seen = {
            "cwd": os.getcwd(), "argv": sys.argv[1:], "main": sys.modules["__main__"].__spec__.name,
            "environment": dict(os.environ), "threads": torch.get_num_threads(), "parent": os.getppid(),
            "stdin": sys.stdin.read(), "interrupt": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
            "filters": [(kind, str(category)) for kind, _, category, _, _ in warnings.filters],
            "fork_of": str(multiprocessing.parent_process().pid),
            "weights": [p.double().sum().item() for p in pl_module.parameters()],
        }
        pathlib.Path("seen.json").write_text(json.dumps(seen))

class Waits(Callback):
    def on_train_batch_start(self, trainer, *args):
        pathlib.Path("waits").write_text(str(os.getpid()))
        end = time.monotonic() + float(os.environ["SECONDS_OF_A_BATCH"])
        while time.monotonic() < end and not trainer.received_sigterm:
            time.sleep(0.01)

class Broken(Callback):
    def setup(self, trainer, pl_module, stage):
        1 / 0
"""


LAYERS = {
    "seen": "trainer: {callbacks+: [{class_path: spy.Spy}]}\n",
    "waiting": "trainer: {callbacks+: [{class_path: spy.Waits}]}\n",
    "broken": "trainer: {callbacks+: [{class_path: spy.Broken}]}\n",
    "wrong": "trainer: {max_epoch: 3}\n",
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    (tmp_path / "spy.py").write_text(SPY)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def task(place: Path, layer: str) -> Task:
    folder = place / layer
    folder.mkdir(exist_ok=True)
    (folder / "log.txt").touch()
    report = {"class_path": "lightning_fire.experiments.training.Report"}
    report["init_args"] = {"path": str(folder / "progress.json")}
    files = {"base.yaml": BASE + FIRE, "run.yaml": LAYERS[layer].replace("+: [", f"+: [{json.dumps(report)}, ")}
    return Task(folder, files, "fingerprint", (), None, place)


def begin(place: Path, layer: str, jobs: int = 1):
    (job,) = Local(jobs, Resources()).begin([task(place, layer)])
    return job


def end_of(job, seconds: float = 200) -> str | None:
    end = time.monotonic() + seconds
    while not job.ended():
        assert time.monotonic() < end
        time.sleep(0.05)
    return job.failure()


def waiting(place: Path, monkeypatch, seconds: float):
    """Return a training in the middle of its first batch, which takes long, and its process."""
    monkeypatch.setenv("SECONDS_OF_A_BATCH", str(seconds))
    job = begin(place, "waiting")
    end = time.monotonic() + 120
    while not (place / "waits").is_file():
        assert not job.ended() and time.monotonic() < end, (place / "waiting" / "log.txt").read_text()
        time.sleep(0.05)
    return job, int((place / "waits").read_text())


@linux
@pytest.mark.slow
def test_a_fork_trains_as_an_interpreter_of_its_own_does(place, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    seen, logs = {}, {}
    for kind in ("fork", "interpreter"):
        with monkeypatch.context() as patch:
            patch.setenv("SAID", kind)
            if kind == "interpreter":
                patch.setattr(torch.cuda, "is_available", lambda: True)
            assert end_of(begin(place, "seen")) is None
        seen[kind] = json.loads((place / "seen.json").read_text())
        logs[kind] = (place / "seen" / "log.txt").read_text()
        (place / "seen" / "finished.json").unlink()
    parent = {kind: str(told["parent"]) for kind, told in seen.items()}
    assert {kind: told["environment"].pop(PARENT) for kind, told in seen.items()} == parent
    assert parent["interpreter"] == str(os.getpid()) != parent["fork"]  # that of the server
    assert {kind: told["environment"].pop("SAID") for kind, told in seen.items()} == {kind: kind for kind in seen}
    assert {told["fork_of"] for told in seen.values()} == {str(os.getpid())}
    for told in seen.values():
        del told["parent"]
    assert seen["fork"] == seen["interpreter"]
    assert seen["fork"]["argv"][0] == "fit" and seen["fork"]["cwd"] == str(place) and seen["fork"]["stdin"] == ""
    assert "`Trainer.fit` stopped: `max_epochs=6` reached." in logs["fork"]
    fork, interpreter = (sorted(re.sub(r"seconds \S+", "", line) for line in log.splitlines()) for log in logs.values())
    assert fork == interpreter


@linux
@pytest.mark.slow
def test_threads_are_those_asked_for(place, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for threads in (1, 2):
        (job,) = Local(1, Resources(cpus=threads)).begin([task(place, "seen")])
        assert end_of(job) is None, (place / "seen" / "log.txt").read_text()
        told = json.loads((place / "seen.json").read_text())
        assert (told["threads"], told["environment"]["OMP_NUM_THREADS"]) == (threads, str(threads))
        (place / "seen" / "finished.json").unlink()


@linux
@pytest.mark.slow
def test_how_a_fork_ends_is_told(place, monkeypatch):
    assert "max_epoch'" in end_of(begin(place, "wrong"))
    assert end_of(begin(place, "broken")) == "ZeroDivisionError: division by zero"
    ends = {"terminate": "stopped from outside before its end", "kill": "killed by SIGKILL; out of memory?"}
    for end, told in ends.items():  # Lightning ends its training at the first
        (place / "waits").unlink(missing_ok=True)
        job, process = waiting(place, monkeypatch, seconds=100)
        getattr(job.process, end)()
        assert end_of(job, 20).startswith(told)
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)
    (place / "waits").unlink()
    job, process = waiting(place, monkeypatch, seconds=100)
    job.stop()
    job.stop()  # does nothing to a process that has ended
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


@linux
@pytest.mark.slow
def test_a_fork_whose_server_is_killed_ends_and_the_next_has_a_new_one(place, monkeypatch):
    job, process = waiting(place, monkeypatch, seconds=1)
    os.kill(forkserver._forkserver._forkserver_pid, signal.SIGKILL)
    assert end_of(job, 10)
    wait_for_end_of(process)
    assert "max_epoch'" in end_of(begin(place, "wrong"))


COMPARES = """
import sys
from pathlib import Path
from lightning_fire.cli import main

print("once")
main(["compare", "recipes/tiny.yaml", "--methods", "slow", "--seeds", "1", "--output", "out"])
"""


@linux
@pytest.mark.slow
def test_a_comparison_that_is_killed_leaves_no_process(place, monkeypatch):
    """A fork server lives as long as its forks. The script is not run again by them, without `if __name__`, too."""
    tiny_recipe(place, {"slow": "trainer: {callbacks+: [{class_path: spy.Waits}]}\n"})
    (place / "script.py").write_text(COMPARES)
    monkeypatch.setenv("SECONDS_OF_A_BATCH", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(place), *sys.path]))
    with open(place / "told", "w") as told:
        script = subprocess.Popen([sys.executable, "script.py"], stdout=told, stderr=told)
        for _ in range(1200):
            if (place / "waits").is_file() and (place / "waits").read_text():
                break
            time.sleep(0.1)
        script.kill()
        script.wait()
    wait_for_end_of(int((place / "waits").read_text()))
    assert (place / "told").read_text().count("once") == 1


def test_a_training_that_has_finished_is_not_done_again(place):
    def never(words):
        raise AssertionError

    one = task(place, "seen")
    (one.folder / "finished.json").write_text('{"settings": "fingerprint"}')
    assert perform(one, never) is None


@pytest.mark.parametrize(("name", "extra"), [("slurm", "submitit"), ("ray", "ray")])
def test_an_engine_that_is_not_installed_is_told(tmp_path, monkeypatch, name, extra):
    monkeypatch.setitem(sys.modules, extra, None)
    with pytest.raises(ImportError, match=rf"pip install 'lightning-fire\[{name}\]'"):
        engine_of(name, tmp_path, 1, Resources(), {})
    with pytest.raises(ValueError, match="--engine local takes no options, got partition"):
        engine_of("local", tmp_path, 1, Resources(), {"partition": "gpu"})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("submitit", ["--engine", "slurm", "--engine-set", "cluster=local"]),
        ("ray", ["--engine", "ray", "--engine-set", "num_cpus=2"]),
    ],
)
def test_every_engine_trains_the_same(place, monkeypatch, module, words):
    """Shared starts, too, and a method that fails."""
    pytest.importorskip(module)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(place), *sys.path]))
    recipe = str(tiny_recipe(place, {"fire": FIRE, "broken": "method: {class_path: FullRest}\n"}))
    one = ["compare", recipe, "--methods", "vanilla", "fire", "--seeds", "1", "--jobs", "2"]
    main([*one, "--output", "here"])
    main([*one, "--output", "there", *words])
    for file in ("results.csv", "summary.csv", "table.txt"):
        assert (place / "here" / file).read_bytes() == (place / "there" / file).read_bytes()
    assert {path.name for path in (place / "here").iterdir()} == {path.name for path in (place / "there").iterdir()}
    with pytest.raises(SystemExit, match="no run finished"):
        main(["compare", recipe, "--methods", "broken", "--seeds", "1", "--output", "there", *words])
