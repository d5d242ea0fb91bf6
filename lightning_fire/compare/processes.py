"""Processes of the command line that a comparison trains in: forks of one that has imported everything.

Importing torch and lightning costs 5 to 25 s of a processor, as much as a small training; a fork costs 0.01 s. The fork
server of `multiprocessing` is not used: it would run the main module of the calling program again for each training.
"""

import atexit
import contextlib
import gc
import importlib
import json
import math
import os
import select
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from lightning_fire.compare.progress import COMPARISON

_READ_AT_START = ("PYTHON", "LD_", "OMP_", "MKL_", "OPENBLAS_", "TORCH", "PYTORCH", "PL_")
_THREADS = "OMP_NUM_THREADS"


def begin(words: Sequence[str], log: Path, environment: Mapping[str, str]) -> "subprocess.Popen | Fork":
    """Start `lightning-fire <words>` in a process of its own.

    On Linux without a GPU it is a fork of a server that has everything imported, which is started by the first call;
    elsewhere forks are not safe, and a new interpreter imports everything anew.

    Args:
        words: The words after `lightning-fire`.
        log: File for all that it prints.
        environment: Its environment variables; its number of threads is that of `OMP_NUM_THREADS`.

    Returns:
        The process, to be polled, waited for and ended.

    Raises:
        OSError: If the log cannot be written.
    """
    if sys.platform == "linux" and not torch.cuda.is_available():
        try:
            return _Server.of(environment).fork(words, log, environment)
        except ConnectionError:
            pass  # the log of a process by itself will tell what is wrong with this installation
    with open(log, "w") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "lightning_fire", *words],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**environment, COMPARISON: str(os.getpid())},
        )


class Fork:
    """A process that the server has forked, to be watched as a `subprocess.Popen`.

    Args:
        server: Its parent.
        pid: Its number.
    """

    def __init__(self, server: "_Server", pid: int):
        self.server, self.pid = server, pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, negative if a signal ended it, None as long as it runs."""
        if self.returncode is None:
            try:
                self.returncode = self.server.ask(wait=self.pid)
            except ConnectionError:  # with its server gone it ends itself, or has ended in a way that nobody knows
                self.returncode = -signal.SIGKILL
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end.

        Args:
            timeout: Seconds at most; None: for ever.

        Returns:
            The exit code.

        Raises:
            subprocess.TimeoutExpired: If it still runs then.
        """
        end = math.inf if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() >= end:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            time.sleep(0.01)
        return code

    def terminate(self) -> None:
        """Ask it to end."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if self.poll() is None:  # until that has told its end, no other process has its number
            os.kill(self.pid, number)


class _Server:
    """The process that has everything imported, and forks. It ends with this one.

    Args:
        environment: Its environment variables.
    """

    current: "_Server | None" = None

    def __init__(self, environment: Mapping[str, str]):
        self.owner, self.key = os.getpid(), self._key(environment)
        self.lock, self.asked = threading.Lock(), 0
        self.process = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=dict(environment),
        )
        atexit.register(self.close)

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "_Server":
        """Return the server, a new one if that was started by another process, or reads variables that differ."""
        old = cls.current
        if old is None or not old.serves(environment):
            if old is not None:
                old.close()
            cls.current = cls(environment)
        return cls.current

    def serves(self, environment: Mapping[str, str]) -> bool:
        """Tell whether this process can have forks with such variables from it."""
        return self.owner == os.getpid() and self.key == self._key(environment) and self.process.poll() is None

    @staticmethod
    def _key(environment: Mapping[str, str]) -> Any:
        read = {name: value for name, value in environment.items() if name.startswith(_READ_AT_START)}
        return {**read, _THREADS: None}  # which a fork can still change

    def fork(self, words: Sequence[str], log: Path, environment: Mapping[str, str]) -> Fork:
        """Return a process that runs the command line.

        Raises:
            ConnectionError: If the server could not be started, or has been killed.
            OSError: If the log cannot be written.
        """
        with open(log, "w"):
            pass
        variables = {**environment, COMPARISON: str(self.process.pid)}
        return Fork(self, self.ask(words=list(words), log=str(log.resolve()), cwd=os.getcwd(), environment=variables))

    def ask(self, **request: Any) -> Any:
        """Return the server's answer to a request."""
        with self.lock:
            self.asked += 1
            try:
                self.process.stdin.write(json.dumps([self.asked, request]).encode() + b"\n")
                self.process.stdin.flush()
                while line := self.process.stdout.readline():
                    number, answer = json.loads(line)
                    if number == self.asked:  # not of a request before, which a signal has interrupted
                        return answer
            except ValueError as error:  # closed
                raise ConnectionError(str(error)) from None
        raise ConnectionError("the server has ended")

    def close(self) -> None:
        """End the server, if this process has started it; its forks then end themselves."""
        atexit.unregister(self.close)
        if self.owner != os.getpid():
            return
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def serve() -> None:
    """Be the server: fork at each request, a line of JSON on the standard input; return in the fork, after its end.

    It ends with the process that has started it.
    """
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)  # comes from a terminal to the whole group
    parent = os.getppid()
    requests, answers = os.dup(0), os.dup(1)
    os.dup2(2, 1)  # what an import prints is no answer
    program = importlib.import_module("lightning_fire.__main__")
    importlib.import_module("lightning_fire.recipe.cli")
    gc.freeze()  # the forks share this memory as long as nobody touches it
    for number, request in _requests(requests, parent):
        if "wait" in request:
            found, status = os.waitpid(request["wait"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if found else None
        elif not (answer := _fork()):
            break
        os.write(answers, json.dumps([number, answer]).encode() + b"\n")
    else:
        return
    os.close(requests)
    os.close(answers)
    signal.signal(signal.SIGINT, interrupt)
    _become(program, **request)
    program.console()


def _requests(pipe: int, parent: int) -> Iterator[list]:
    """Yield what comes through a pipe until it is closed, or the process on its other end is gone."""
    text = b""
    while os.getppid() == parent:
        if select.select([pipe], [], [], 1)[0]:
            if not (more := os.read(pipe, 1 << 16)):
                return
            *lines, text = (text + more).split(b"\n")
            yield from map(json.loads, lines)


def _fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads: those of OpenBLAS, which provides for it
        return os.fork()


def _become(program: Any, words: list[str], log: str, cwd: str, environment: dict[str, str]) -> None:
    """Make this fork what a new interpreter would be that runs the program."""
    output, nothing = os.open(log, os.O_WRONLY | os.O_APPEND), os.open(os.devnull, os.O_RDONLY)
    for old, new in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(old, new)
    os.close(output)
    os.close(nothing)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    if sys.path[0] == "":
        sys.path[0] = cwd  # as by `python -m`: jsonargparse changes the working directory while it reads a file
    if environment.get(_THREADS, "").isdigit():
        torch.set_num_threads(int(environment[_THREADS]))
    sys.modules["__main__"].__spec__ = program.__spec__  # strategies start further processes by the same command
    sys.argv = [program.__file__, *words]
    gc.unfreeze()  # or what the end of the interpreter frees would be told as leaked
