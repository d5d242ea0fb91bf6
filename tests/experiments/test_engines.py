"""The processes that a comparison trains in: a fork of the server behaves as an interpreter of its own."""

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
from lightning_fire.experiments.processes import Training, begin
from lightning_fire.experiments.progress import COMPARISON
from tiny_recipe import BASE, FIRE

linux = pytest.mark.skipif(
    sys.platform != "linux" or torch.cuda.is_available(), reason="forks are for Linux without a GPU"
)

SPY = """
import json, os, pathlib, signal, sys, time, warnings
import torch
from lightning.pytorch import Callback

class Spy(Callback):
    def on_fit_end(self, trainer, pl_module):
        seen = {
            "cwd": os.getcwd(), "argv": sys.argv[1:], "main": sys.modules["__main__"].__spec__.name,
            "environment": dict(os.environ), "threads": torch.get_num_threads(), "parent": os.getppid(),
            "stdin": sys.stdin.read(), "interrupt": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
            "filters": [(kind, str(category)) for kind, _, category, _, _ in warnings.filters],
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


@pytest.fixture
def place(tmp_path, monkeypatch):
    (tmp_path / "spy.py").write_text(SPY)
    (tmp_path / "base.yaml").write_text(BASE)
    (tmp_path / "fire.yaml").write_text(FIRE)
    (tmp_path / "seen.yaml").write_text("trainer: {callbacks+: [{class_path: spy.Spy}]}\n")
    (tmp_path / "waiting.yaml").write_text("trainer: {callbacks+: [{class_path: spy.Waits}]}\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def environment():
    return dict(os.environ)


def waiting(place: Path, environment: dict, seconds: float) -> tuple[Training, int]:
    """Return a training in the middle of its first batch, which takes long, and its process."""
    training = begin(
        ["fit", "-c", "base.yaml", "-c", "waiting.yaml"],
        place / "log",
        {**environment, "SECONDS_OF_A_BATCH": str(seconds)},
    )
    end = time.monotonic() + 120
    while not (place / "waits").is_file():
        assert training.poll() is None and time.monotonic() < end, (place / "log").read_text()
        time.sleep(0.05)
    return training, int((place / "waits").read_text())


@linux
@pytest.mark.slow
def test_a_fork_trains_as_an_interpreter_of_its_own_does(place, environment, monkeypatch):
    words = ["fit", "-c", "base.yaml", "-c", "fire.yaml", "-c", "seen.yaml"]
    seen, logs = {}, {}
    for kind in ("fork", "interpreter"):
        with monkeypatch.context() as patch:
            if kind == "interpreter":
                patch.setattr(torch.cuda, "is_available", lambda: True)
            training = begin(words, place / "log", {**environment, "OMP_NUM_THREADS": "1", "SAID": kind})
        assert training.wait(timeout=200) == 0
        seen[kind] = json.loads((place / "seen.json").read_text())
        logs[kind] = (place / "log").read_text()
    parent = {kind: str(told["parent"]) for kind, told in seen.items()}
    assert {kind: told["environment"].pop(COMPARISON) for kind, told in seen.items()} == parent
    assert parent["interpreter"] == str(os.getpid()) != parent["fork"]  # that of the server
    assert {kind: told["environment"].pop("SAID") for kind, told in seen.items()} == {kind: kind for kind in seen}
    for told in seen.values():
        del told["parent"]
    assert seen["fork"] == seen["interpreter"]
    assert seen["fork"]["argv"] == words and seen["fork"]["cwd"] == str(place) and seen["fork"]["stdin"] == ""
    assert "`Trainer.fit` stopped: `max_epochs=6` reached." in logs["fork"]
    fork, interpreter = (sorted(re.sub(r"seconds \S+", "", line) for line in log.splitlines()) for log in logs.values())
    assert fork == interpreter


@linux
@pytest.mark.slow
def test_threads_environment_and_place_are_those_asked_for(place, environment):
    words = ["fit", "-c", "../base.yaml", "-c", "../seen.yaml"]
    seen = []
    for threads in ("1", "2"):
        folder = place / threads
        folder.mkdir()
        (folder / "spy.py").write_text(SPY)
        os.chdir(folder)
        training = begin(words, place / "log", {**environment, "OMP_NUM_THREADS": threads})
        assert training.wait(timeout=200) == 0, (place / "log").read_text()
        told = json.loads((folder / "seen.json").read_text())
        seen.append((told["threads"], told["environment"]["OMP_NUM_THREADS"], told["cwd"]))
    assert seen == [(1, "1", str(place / "1")), (2, "2", str(place / "2"))]


@linux
@pytest.mark.slow
def test_how_a_fork_ends_is_told(place, environment):
    refused = begin(["fit", "-c", "no.yaml"], place / "log", environment)
    assert refused.wait(timeout=200) == 2
    assert "no.yaml" in (place / "log").read_text()
    (place / "seen.yaml").write_text("trainer: {callbacks+: [{class_path: spy.Broken}]}\n")
    broken = begin(["fit", "-c", "base.yaml", "-c", "seen.yaml"], place / "log", environment)
    assert broken.wait(timeout=100) == 1
    assert (place / "log").read_text().split()[-4:] == ["ZeroDivisionError:", "division", "by", "zero"]
    for end, code in (("terminate", 0), ("kill", -signal.SIGKILL)):  # Lightning ends its training at the first
        (place / "waits").unlink(missing_ok=True)
        training, process = waiting(place, environment, seconds=100)
        with pytest.raises(subprocess.TimeoutExpired):
            training.wait(timeout=0.1)
        getattr(training, end)()
        assert training.wait(timeout=20) == code == training.poll()
        getattr(training, end)()  # does nothing to a process that has ended
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


@linux
@pytest.mark.slow
def test_a_fork_whose_server_is_killed_ends_and_the_next_has_a_new_one(place, environment):
    training, process = waiting(place, environment, seconds=1)
    os.kill(forkserver._forkserver._forkserver_pid, signal.SIGKILL)
    assert training.wait(timeout=10) != 0
    wait_for_end_of(process)
    assert begin(["fit", "-c", "no.yaml"], place / "log", environment).wait(timeout=100) == 2


@linux
@pytest.mark.slow
def test_a_script_that_compares_is_not_run_again_by_its_trainings(place, environment):
    """Without `if __name__ == "__main__"`, too."""
    code = "import os, pathlib\nfrom lightning_fire.experiments.processes import begin\nprint('once')\n"
    code += "log = pathlib.Path('log')\ntraining = begin(['fit', '-c', 'no.yaml'], log, os.environ)\n"
    (place / "script.py").write_text(code + "print(training.wait(100), log.read_text().count('once'))\n")
    done = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == ["once", "2", "0"]


@linux
def test_a_log_that_cannot_be_written_is_an_error(place, environment):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        begin(["fit"], place / "nowhere" / "log", environment)
