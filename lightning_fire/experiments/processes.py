"""Processes of the command line that a comparison trains in: forks of a server that has imported everything.

Importing torch and lightning costs 5 to 25 s of a processor, as much as a small training; a fork costs 0.01 s.
"""

import importlib
import multiprocessing
import os
import subprocess
import sys
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from lightning_fire.experiments.progress import COMPARISON


class Training:
    """A process of `multiprocessing`, to be watched as a `subprocess.Popen`."""

    def __init__(self, process: Any):
        self.process, self.pid = process, process.pid

    @property
    def returncode(self) -> int | None:
        """Its exit code, negative if a signal ended it, None as long as it runs."""
        return self.process.exitcode

    def poll(self) -> int | None:
        """Return its exit code, None as long as it runs."""
        return self.process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, and return its exit code."""
        self.process.join(timeout)
        if self.process.exitcode is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        return self.process.exitcode

    def terminate(self) -> None:
        """Ask it to end."""
        self.process.terminate()

    def kill(self) -> None:
        """End it."""
        self.process.kill()


def begin(words: Sequence[str], log: Path, environment: Mapping[str, str]) -> Training:
    """Start `lightning-fire <words>` in a process of its own.

    On Linux without a GPU it is a fork of Python's fork server, which the first call starts; elsewhere forks are not
    safe, and a new interpreter imports everything anew.
    """
    with open(log, "w"):
        pass
    forks = sys.platform == "linux" and not torch.cuda.is_available()
    context = multiprocessing.get_context("forkserver" if forks else "spawn")
    if forks:
        context.set_forkserver_preload(["lightning_fire.recipe.cli"])
    process = context.Process(target=_train, args=(list(words), str(log.resolve()), os.getcwd(), dict(environment)))
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")  # or the script that called us would be run there again
    try:
        process.start()
    finally:
        sys.modules["__main__"] = main
    return Training(process)


def _train(words: list[str], log: str, folder: str, environment: dict[str, str]) -> None:
    """Be what a new interpreter would be that runs the program."""
    output = os.open(log, os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.close(output)
    os.environ.clear()
    os.environ.update({**environment, COMPARISON: str(os.getppid())})
    os.chdir(folder)
    sys.path.insert(0, folder)
    program = importlib.import_module("lightning_fire.__main__")
    if environment.get("OMP_NUM_THREADS", "").isdigit():
        torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))
    sys.modules["__main__"].__spec__ = program.__spec__  # strategies start further processes by the same command
    sys.argv = [str(program.__file__), *words]
    program.console()
