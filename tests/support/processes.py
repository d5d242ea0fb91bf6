"""Scripts in processes of their own: forks of one that has everything imported, where the system can."""

import multiprocessing
import os
import runpy
import socket
import sys
import time
from multiprocessing.connection import wait
from pathlib import Path

import torch

_METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


def run(source: str, folder: Path, ranks: int = 1, timeout: float = 300) -> None:
    """Run a script, which must not fail.

    Args:
        source: Its text. It can import the modules of the tests.
        folder: Where to put it, and what it prints.
        ranks: Number of processes to run it in, as an outer launcher starts those of a distributed training. One may
            start others by itself.
        timeout: Seconds that it may take.
    """
    script = folder / "script.py"
    script.write_text(source)
    context = multiprocessing.get_context(_METHOD)
    if _METHOD == "forkserver":
        context.set_forkserver_preload(["lightning_fire.cli", "lightning.pytorch.strategies"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [context.Process(target=_be, args=(script, rank, ranks, port)) for rank in range(ranks)]
    end = time.monotonic() + timeout
    try:
        for process in processes:
            process.start()
        while running := [process for process in processes if process.exitcode is None]:
            wait([process.sentinel for process in running], max(0.0, end - time.monotonic()))
            if time.monotonic() >= end or any(process.exitcode for process in processes):
                break  # the others may wait for ever
    finally:
        for process in processes:
            process.kill()
            process.join()
    printed = "\n".join(output.read_text()[-3000:] for output in sorted(folder.glob("printed*")))
    assert [process.exitcode for process in processes] == [0] * ranks, printed


def _be(script: Path, rank: int, ranks: int, port: int) -> None:
    """Be one of the processes."""
    output = os.open(script.with_name(f"printed{rank}"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.environ.update(OMP_NUM_THREADS="1", PYTHONPATH=os.pathsep.join(sys.path))
    if ranks > 1:
        os.environ.update(LOCAL_RANK=str(rank), NODE_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    sys.argv = [str(script)]
    runpy.run_path(str(script), run_name="__main__")
