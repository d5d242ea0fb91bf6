"""Processes that are killed: forks of one that has imported everything, so that each begins at once."""

import os
import random
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

KILLED = -signal.SIGKILL
_CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.symlink", "os.link", "os.truncate", "os.chmod")


def lived(
    work: Callable[[], object], seconds: float | None = None, operations: int | None = None, patience: float = 60
) -> int:
    """Run `work` in a process of its own, kill -9 that at some time, and wait until all its children have ended.

    Args:
        work: What to do.
        seconds: When to kill it; None: never.
        operations: Before which change to the disk, counted from 1, to kill it; None: before none.
        patience: Seconds after which a process that should have ended is an error.

    Returns:
        Its exit code.
    """
    alive, held_by_all = os.pipe()
    process = forked(work, operations)
    os.close(held_by_all)
    code = _awaited(process, seconds, patience)
    ended, _, _ = select.select([alive], [], [], patience)  # end of file: no process holds the other end
    os.close(alive)
    assert ended, "a killed process has left others that go on"
    return code


def forked(work: Callable[[], object], operations: int | None = None) -> int:
    """Run `work` in a process of its own; return its number.

    Args:
        work: What to do.
        operations: Before which change to the disk it is to kill itself; None: before none.
    """
    if process := os.fork():
        return process
    code = 1
    try:
        if operations is not None:
            _die_before(operations)
        work()
        code = 0
    except SystemExit as error:
        print(error, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # nothing of the process that it is a copy of


def random_death(draw: random.Random, seconds: float, operations: int) -> dict[str, float]:
    """Draw when to kill a process, as `lived` takes it: by the clock, or by its changes to the disk.

    Args:
        draw: Draws.
        seconds: The latest.
        operations: The most.
    """
    if draw.random() < 0.5:
        return {"seconds": draw.uniform(0, seconds)}
    return {"operations": draw.randint(1, operations)}


def wait_for_end_of(process: int, seconds: float = 30) -> None:
    """Wait for a process that need not be a child of this one; Linux alone.

    Args:
        process: Its number.
        seconds: After which it is an error if it still runs.
    """
    end = time.monotonic() + seconds
    while Path(f"/proc/{process}").exists():
        if Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return  # its exit code was not requested yet
        assert time.monotonic() < end, "it continues"
        time.sleep(0.05)


def _awaited(process: int, seconds: float | None, patience: float) -> int:
    end = time.monotonic() + (patience if seconds is None else seconds)
    while not (found := os.waitpid(process, os.WNOHANG))[0]:
        if time.monotonic() >= end:
            os.kill(process, signal.SIGKILL)
            found = os.waitpid(process, 0)
            assert seconds is not None, "a process has not come to its end"
            break
        time.sleep(0.002)
    return os.waitstatus_to_exitcode(found[1])


def _die_before(operations: int) -> None:
    """Kill this process before its n-th change to the disk, from any line.

    Where that is to open a file for writing: right after that, before anything is written.
    """
    left, process = operations, os.getpid()

    def count(event: str, arguments: tuple) -> None:
        nonlocal left
        opens = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if (opens or event in _CHANGES) and os.getpid() == process:
            left -= 1
            if left == 0:
                if opens:
                    os.open(arguments[0], arguments[2], 0o666)
                os.kill(process, signal.SIGKILL)

    sys.addaudithook(count)
