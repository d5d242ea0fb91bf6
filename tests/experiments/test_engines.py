"""Where trainings run: a fork of the server behaves as an interpreter of its own; Slurm and Ray train the same."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from functools import partial
from multiprocessing import forkserver
from pathlib import Path

import pytest
import torch
import yaml
from killed_processes import wait_for_end_of
from tiny_recipe import BASE, FIRE, tiny_recipe

from lightning_fire.cli import main
from lightning_fire.experiments.engines import Local, Resources, _ClusterJob, engine_of, train_elsewhere
from lightning_fire.experiments.runs import PARENT, Run
from lightning_fire.experiments.training import perform

linux = pytest.mark.skipif(
    sys.platform != "linux" or torch.cuda.is_available(), reason="forks are for Linux without a GPU"
)

SPY = """
import atexit, json, multiprocessing, os, pathlib, signal, sys, time, warnings
import torch
from lightning.pytorch import Callback

class Spy(Callback):
    def on_fit_end(self, trainer, pl_module):
        seen = {
            "cwd": os.getcwd(), "argv": sys.argv[1:], "main": sys.modules["__main__"].__spec__.name,
            "environment": dict(os.environ), "threads": torch.get_num_threads(), "parent": os.getppid(),
            "stdin": sys.stdin.read(), "interrupt": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
            "filters": [(kind, str(category)) for kind, _, category, _, _ in warnings.filters],
            "fork_of": str(getattr(multiprocessing.parent_process(), "pid", os.getppid())),
            "workers": multiprocessing.get_start_method(allow_none=True),
            "weights": [p.double().sum().item() for p in pl_module.parameters()],
        }
        pathlib.Path("seen.json").write_text(json.dumps(seen))
        atexit.register(pathlib.Path("left").write_text, os.environ.get("SAID", ""))

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
def workdir(tmp_path, monkeypatch):
    (tmp_path / "spy.py").write_text(SPY)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_of(workdir: Path, layer: str) -> Run:
    folder = workdir / layer
    folder.mkdir(exist_ok=True)
    (folder / "log.txt").touch()
    return Run(layer, 0, folder, [yaml.safe_load(BASE + FIRE), yaml.safe_load(LAYERS[layer])])


def begin(workdir: Path, layer: str, jobs: int = 1):
    (job,) = Local(jobs, Resources()).begin([run_of(workdir, layer)])
    return job


def end_of(job, seconds: float = 200) -> str | None:
    end = time.monotonic() + seconds
    while not job.ended():
        assert time.monotonic() < end
        time.sleep(0.05)
    return job.failure()


def waiting(workdir: Path, monkeypatch, seconds: float):
    """Return a training in the middle of its first batch, which takes long, and its process."""
    monkeypatch.setenv("SECONDS_OF_A_BATCH", str(seconds))
    job = begin(workdir, "waiting")
    end = time.monotonic() + 120
    while not (workdir / "waits").is_file():
        assert not job.ended() and time.monotonic() < end, (workdir / "waiting" / "log.txt").read_text()
        time.sleep(0.05)
    return job, int((workdir / "waits").read_text())


@linux
@pytest.mark.slow
def test_a_fork_trains_as_an_interpreter_of_its_own_does(workdir, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    seen, logs = {}, {}
    for kind in ("fork", "spawned", "interpreter"):
        with monkeypatch.context() as patch:
            patch.setenv("SAID", kind)
            if kind == "interpreter":
                assert train_elsewhere(run_of(workdir, "seen"), workdir, 1) is None
            else:
                if kind == "spawned":
                    patch.setattr(torch.cuda, "is_available", lambda: True)
                assert end_of(begin(workdir, "seen")) is None
        seen[kind] = json.loads((workdir / "seen.json").read_text())
        logs[kind] = (workdir / "seen" / "log.txt").read_text()
        assert (workdir / "left").read_text() == kind
        (workdir / "seen" / "finished.json").unlink()
    parent = {kind: str(report["parent"]) for kind, report in seen.items()}
    assert {kind: report["environment"].pop(PARENT) for kind, report in seen.items()} == parent
    assert parent["interpreter"] == parent["spawned"] == str(os.getpid()) != parent["fork"]  # that of the server
    assert {kind: report["environment"].pop("SAID") for kind, report in seen.items()} == {kind: kind for kind in seen}
    assert {report["fork_of"] for report in seen.values()} == {str(os.getpid())}
    for report in seen.values():
        del report["parent"]
    assert seen["fork"] == seen["spawned"] == seen["interpreter"]
    assert seen["fork"]["argv"][0] == "fit" and seen["fork"]["cwd"] == str(workdir) and seen["fork"]["stdin"] == ""
    assert "`Trainer.fit` stopped: `max_epochs=6` reached." in logs["fork"]
    fork, *others = (sorted(re.sub(r"seconds \S+", "", line) for line in log.splitlines()) for log in logs.values())
    assert others == [fork, fork]


@linux
@pytest.mark.crash
def test_threads_are_those_asked_for(workdir, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for threads in (1, 2):
        (job,) = Local(1, Resources(cpus=threads)).begin([run_of(workdir, "seen")])
        assert end_of(job) is None, (workdir / "seen" / "log.txt").read_text()
        report = json.loads((workdir / "seen.json").read_text())
        assert (report["threads"], report["environment"]["OMP_NUM_THREADS"]) == (threads, str(threads))
        (workdir / "seen" / "finished.json").unlink()


@linux
@pytest.mark.slow
def test_a_fork_that_fails_says_why(workdir):
    assert "unknown key trainer.max_epoch;" in end_of(begin(workdir, "wrong"))
    assert end_of(begin(workdir, "broken")) == "ZeroDivisionError: division by zero"


@linux
@pytest.mark.slow
def test_a_fork_that_is_ended_from_outside(workdir, monkeypatch):
    ends = {"terminate": "stopped from outside before its end", "kill": "killed by SIGKILL; out of memory?"}
    for end, message in ends.items():  # Lightning ends its training at the first
        (workdir / "waits").unlink(missing_ok=True)
        job, process = waiting(workdir, monkeypatch, seconds=100)
        getattr(job.process, end)()
        assert end_of(job, 20).startswith(message)
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)
    (workdir / "waits").unlink()
    job, process = waiting(workdir, monkeypatch, seconds=100)
    job.stop()
    job.stop()  # does nothing to a process that has ended
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


@linux
@pytest.mark.crash
def test_a_fork_whose_server_is_killed_ends_and_the_next_has_a_new_one(workdir, monkeypatch):
    job, process = waiting(workdir, monkeypatch, seconds=1)
    os.kill(forkserver._forkserver._forkserver_pid, signal.SIGKILL)
    assert end_of(job, 10)
    wait_for_end_of(process)
    assert "unknown key trainer.max_epoch;" in end_of(begin(workdir, "wrong"))


COMPARES = """
import sys
from pathlib import Path
from lightning_fire.cli import main

print("once")
main(["compare", "recipes/tiny.yaml", "--methods", "slow", "--seeds", "1", "--output", "out"])
"""


@linux
@pytest.mark.crash
def test_a_comparison_that_is_killed_leaves_no_process(workdir, monkeypatch):
    """A fork server lives as long as its forks. The script is not run again by them, without `if __name__`, too."""
    tiny_recipe(workdir, {"slow": "trainer: {callbacks+: [{class_path: spy.Waits}]}\n"})
    (workdir / "script.py").write_text(COMPARES)
    monkeypatch.setenv("SECONDS_OF_A_BATCH", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(workdir), *sys.path]))
    with open(workdir / "output", "w") as output:
        script = subprocess.Popen([sys.executable, "script.py"], stdout=output, stderr=output)
        for _ in range(1200):
            if (workdir / "waits").is_file() and (workdir / "waits").read_text():
                break
            time.sleep(0.1)
        script.kill()
        script.wait()
    wait_for_end_of(int((workdir / "waits").read_text()))
    assert (workdir / "output").read_text().count("once") == 1


def test_a_training_that_has_finished_is_not_done_again(workdir):
    def never(words):
        raise AssertionError

    one = run_of(workdir, "seen")
    (one.folder / "finished.json").write_text(json.dumps({"settings": one.fingerprint()}))
    assert perform(one, never) is None


@pytest.mark.parametrize(("name", "extra"), [("slurm", "submitit"), ("ray", "ray")])
def test_an_engine_that_is_not_installed_raises(tmp_path, monkeypatch, name, extra):
    monkeypatch.setitem(sys.modules, extra, None)
    with pytest.raises(ImportError, match=rf"pip install 'lightning-fire\[{name}\]'"):
        engine_of(name, tmp_path, 1, Resources(), {})
    with pytest.raises(ValueError, match="--engine local takes no options, got partition"):
        engine_of("local", tmp_path, 1, Resources(), {"partition": "gpu"})


def test_slurm_is_not_replaced_by_this_machine(workdir, monkeypatch, capsys):
    pytest.importorskip("submitit")
    monkeypatch.setattr(shutil, "which", {}.get)
    recipe = str(tiny_recipe(workdir, {"fire": FIRE}))
    for options in ([], ["cluster=slurm"], ["partition=gpu"]):
        with pytest.raises(SystemExit, match="2"):
            main(["compare", recipe, "--methods", "fire", "--engine", "slurm", "--engine-set", *options])
        assert "--engine slurm: no `sbatch` on this machine" in capsys.readouterr().err
    for cluster in ("local", "debug"):
        assert engine_of("slurm", workdir, 1, Resources(), {"cluster": cluster}).executor.cluster == cluster


@pytest.mark.slow(30)
@pytest.mark.parametrize(
    "methods", [["fire"], pytest.param(["vanilla", "fire", "broken"], marks=pytest.mark.crash)], ids=len
)
def test_every_engine_trains_the_same(workdir, monkeypatch, methods):
    """Shared starts, too, which two methods have; and a method that fails."""
    pytest.importorskip("submitit")
    pytest.importorskip("ray")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(workdir), *sys.path]))
    monkeypatch.setenv("RAY_worker_niceness", "0")  # by default 15: it would wait for all other tests
    recipe = str(tiny_recipe(workdir, {"fire": FIRE, "broken": "method: {class_path: FullRest}\n"}))
    one = ["compare", recipe, "--methods", *methods, "--seeds", "1", "--jobs", "2"]
    broken = partial(pytest.raises, SystemExit, match="1 of 3 runs failed")
    for words in (
        ["here"],
        ["slurm", "--engine", "slurm", "--engine-set", "cluster=local"],
        ["ray", "--engine", "ray", "--engine-set", "num_cpus=2"],
    ):
        with broken() if "broken" in methods else nullcontext():
            main([*one, "--output", *words])
        for file in ("results.csv", "summary.csv", "table.txt"):
            assert (workdir / "here" / file).read_bytes() == (workdir / words[0] / file).read_bytes()
        assert {path.name for path in (workdir / "here").iterdir()} == {
            path.name for path in (workdir / words[0]).iterdir()
        }


def test_failures_of_a_cluster_are_told_by_the_log_or_by_its_library(tmp_path):
    (tmp_path / "log.txt").write_text("Seed set to 0\nfit: error: no method\nfier\n")

    def lost():
        raise OSError("submitit\nThe job was killed\n")

    def failure(result):
        return _ClusterJob(tmp_path / "log.txt", lambda: True, result, lambda: None).failure()

    assert failure(lambda: None) is None
    assert failure(lambda: "killed") == "killed"
    assert failure(lambda: 2) == "fit: error: no method fier"
    assert failure(lost) == "The job was killed"
