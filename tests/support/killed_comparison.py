"""A `lightning-fire compare` that is repeatedly killed and restarted."""

import json
import os
import random
import signal
import sys
import time
import warnings
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch
from instantaneous_runs import Instantaneous
from killed_processes import KILLED, forked, lived
from lightning.pytorch import Callback
from tiny_recipe import FIRE, tiny_recipe

from lightning_fire.cli import main as lightning_fire
from lightning_fire.experiments import compare as compare_command
from lightning_fire.experiments import report, runner, runs, training

RESULTS = ("table.txt", "results.csv", "summary.csv", "comparison.png")
METHODS = ["vanilla", "fire", "full_reset"]


class Forked:
    """Stand-in for an engine and its jobs: trains in forks of the comparison itself, without a server."""

    limit = 2

    def begin(self, runs):
        """Begin trainings."""
        return list(map(Job, runs))

    def close(self):
        """Do nothing."""


class Job:
    """A training in a fork."""

    def __init__(self, run):
        comparison = str(os.getpid())

        def work():
            with open(run.log, "a") as output:
                os.dup2(output.fileno(), sys.stdout.fileno())
                os.dup2(output.fileno(), sys.stderr.fileno())
            os.environ[runs.PARENT] = comparison
            for number in (signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            if reason := training.perform(run, lambda words: lightning_fire(["fit", *words]) and None):
                raise SystemExit(reason)

        self.process, self.code = forked(work), None

    def ended(self):
        """Return whether it has ended."""
        if self.code is None and (found := os.waitpid(self.process, os.WNOHANG))[0]:
            self.code = os.waitstatus_to_exitcode(found[1])
        return self.code is not None

    def failure(self):
        """Return the error."""
        return str(self.code) if self.code else None

    def stop(self):
        """End it."""
        os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)


class KillsItsParent(Callback):
    """Leaves its process an orphan that trains for a minute."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.global_step == 0:
            os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(5)


def compare(recipe: Path, output: Path, methods: list[str]) -> None:
    """Run the command."""
    words = ["--methods", *methods, "--seeds", "1", "--jobs", "2", "--output", str(output)]
    lightning_fire(["compare", str(recipe), *words])


def print_json(**values) -> None:
    """Print a line of JSON."""
    print(json.dumps(values), flush=True)


def kill_trainings(folder: Path, recipe: Path, kills: int = 3) -> None:
    """Compare undisturbed; then with some kills by the clock."""
    compare_command.engine_for = lambda *args: Forked()
    os.environ[training.SAVE_SECONDS] = "0"
    print_json(training="orphan", code=lived(partial(compare, recipe, folder / "orphan", ["orphan"]), patience=20))
    print_json(training="whole", code=lived(partial(compare, recipe, folder / "whole", METHODS[:2])))
    draw, number = random.Random(0), 0
    while kills:
        code = KILLED
        while code == KILLED:
            seconds = draw.uniform(0, 6) if kills else None
            code = lived(partial(compare, recipe, folder / f"killed{number}", METHODS[:2]), seconds=seconds)
            kills -= code == KILLED
            print_json(training=f"killed{number}", code=code)
        number += 1


def kill_at_changes(folder: Path, recipe: Path, every: int) -> None:
    """Compare with trainings that take no time, each time killed some changes to the disk later; then with one more."""
    Instantaneous.write_logs(folder / "logs", METHODS)
    compare_command.engine_for = Instantaneous
    runner.time = SimpleNamespace(sleep=lambda seconds: None, monotonic=time.monotonic)
    report.draw = lambda panels, path, title, *others, **options: path.write_text(title)
    operations, code = 1 - every, KILLED
    while code == KILLED:
        operations += every
        place = folder / f"killed{operations}"
        code = lived(partial(compare, recipe, place, METHODS[:2]), operations=operations)
        files = {file.name: file.read_text() for file in place.glob("*.*") if file.name in RESULTS}
        print_json(training=place.name, code=code, files=files)
        print_json(training=place.name, code=lived(partial(compare, recipe, place, METHODS)))


def main(folder: Path, what: str, *number: str) -> None:
    """Compare with kills; print a line of JSON for each life."""
    overlays = {
        "fire": FIRE,
        "full_reset": "method: {class_path: FullReset}\n",
        "orphan": "method: {class_path: killed_comparison.KillsItsParent}\n",
    }
    kill = {"trainings": kill_trainings, "files": kill_at_changes}[what]
    kill(folder, tiny_recipe(folder, overlays), *map(int, number))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), *sys.argv[2:])
