"""Everything that is measured on a GPU, in one command of ten minutes: `make gpu`.

    python benchmarks/gpu.py [--output runs/gpu] [--seconds 590] [--only PART …]
    python benchmarks/gpu.py --dry-run                  # the plan; needs no GPU
    python benchmarks/gpu.py --device cpu               # the same in small, to try the command itself

It needs torch, lightning and pytest, and no data. The parts run in order of worth, each for a limited time in a process
of its own, and leave a file each in `--output` as they end; what they print is in `log.txt` there. A second call leaves
out parts that have a file, and tries the others again. It ends with the tables, in Markdown;
`python benchmarks/gpu_tables.py FOLDER --write` puts them into docs/speed.md.
"""

import argparse
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from gpu_tables import tables_of

FOLDER = Path(__file__).parent
SPARE = 10  # seconds of a call, to end a part and print
SHORTEST = 20  # seconds, under which no part is begun


class Part(NamedTuple):
    """A part of the measurements.

    Attributes:
        limit: Seconds after which it is ended.
        command: Words after `python`; `RESULT` stands for its file.
        small: Further words that make it small, for a try on a CPU.
        suffix: Of its file.
    """

    limit: float
    command: str
    small: str
    suffix: str = "json"


PARTS = {
    "checks": Part(
        150,
        "-m pytest tests/gpu -n 6 --dist worksteal -W default -q -p no:cacheprovider --junitxml RESULT",
        "-k upgd -n 0 --dist no",
        "xml",
    ),
    "event_cost": Part(90, "benchmarks/event_cost.py --batches 26 --rounds 3 --json RESULT", "--net small --batch 2"),
    "exact_cost": Part(
        90, "benchmarks/exact_cost.py --matrices 10000 --rounds 2 --json RESULT", "--shapes 64x64 --matrices 100"
    ),
    "language_speed": Part(
        160,
        "benchmarks/language_speed.py --only gpt-2 --batch 12 --block 1024 --accumulate 4 --steps 30 --rounds 2"
        " --precision bf16-mixed --json RESULT",
        "--only small --batch 2 --block 8 --accumulate 1 --steps 2 --rounds 1",
    ),
    "projection_cost": Part(
        90, "benchmarks/projection_cost.py --rounds 3 --ways paper exact svd --json RESULT", "--only dqn --rounds 1"
    ),
    "epoch_speed": Part(
        110,
        "benchmarks/epoch_speed.py --only resnet-18 --batch 256 --batches 100 --rounds 3 --precision bf16-mixed"
        " --channels-last --json RESULT",
        "--only small --batch 4 --batches 2 --rounds 1 --epochs 1",
    ),
    "large_event": Part(90, "benchmarks/large_event.py --json RESULT", "--width 64 --blocks 2"),
}


def result_of(name: str, output: Path) -> Path:
    """Return the file of a part."""
    return output / f"{name}.{PARTS[name].suffix}"


def words_of(name: str, output: Path, small: bool) -> list[str]:
    """Return the command of a part."""
    command = f"{PARTS[name].command} {PARTS[name].small}" if small else PARTS[name].command
    result = str(result_of(name, output).resolve())
    return [sys.executable, *(result if word == "RESULT" else word for word in shlex.split(command))]


def work(names: Sequence[str], output: Path, until: float, device: str) -> None:
    """Run the parts that have no file, in order, until the time is over."""
    for name in names:
        limit = min(PARTS[name].limit, until - time.monotonic())
        if result_of(name, output).exists() or limit < min(SHORTEST, PARTS[name].limit):
            continue
        began, log = time.monotonic(), output / "log.txt"
        print(f"{name}: at most {limit:.0f} s", file=sys.stderr, flush=True)
        code = call(words_of(name, output, device == "cpu"), log, limit, device)
        ended = "ended by the limit" if code is None else f"exit {code}" if code else "done"
        print(f"{name}: {ended} after {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


def call(command: Sequence[str], log: Path, limit: float, device: str) -> int | None:
    """Run a command, with what it prints in a file; end it after some seconds, and return None then."""
    paths = os.pathsep.join(filter(None, (str(FOLDER.parent), os.environ.get("PYTHONPATH"))))  # of a clone, too
    environment = {**os.environ, "PYTHONPATH": paths, "LIGHTNING_FIRE_DEVICE": device}
    with log.open("a") as file:
        file.write(f"\n$ {shlex.join(command)}\n")
        file.flush()
        child = subprocess.Popen(
            command, stdout=file, stderr=file, env=environment, cwd=FOLDER.parent, start_new_session=True
        )
        try:
            return child.wait(limit)
        except subprocess.TimeoutExpired:
            return None
        finally:  # also where this process is to end
            end(child)


def end(child: subprocess.Popen) -> None:
    """End a process and those that it has started."""
    for number, seconds in ((signal.SIGTERM, 3), (signal.SIGKILL, 3)):
        try:
            os.killpg(child.pid, number)
            child.wait(seconds)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def plan(names: Sequence[str], output: Path, small: bool) -> str:
    """Return the parts, their limits and their commands as a table."""
    lines = ["| part | at most | command |", "|---|--:|---|"]
    for name in names:
        command = shlex.join(["python", *words_of(name, output, small)[1:]])
        done = " (done)" if result_of(name, output).exists() else ""
        lines.append(f"| {name}{done} | {PARTS[name].limit:.0f} s | `{command}` |")
    total = sum(PARTS[name].limit for name in names)
    return "\n".join(
        [*lines, f"\nAt most {total:.0f} s in all; a call ends after --seconds, and the next one continues."]
    )


def main(words: Sequence[str] | None = None) -> None:
    """Run and print."""
    until = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true", help="print the plan, and do nothing")
    parser.add_argument("--seconds", type=float, default=590, help="of this call (default: %(default)g)")
    parser.add_argument("--output", type=Path, default=Path("runs/gpu"), help="folder of the results")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: everything in small")
    options = parser.parse_args(words)
    if options.dry_run:
        print(plan(options.only, options.output, options.device == "cpu"))
        return
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no GPU; --dry-run shows the plan, --device cpu tries it in small")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    options.output.mkdir(parents=True, exist_ok=True)
    work(options.only, options.output, until + options.seconds - SPARE, options.device)
    left = [name for name in options.only if not result_of(name, options.output).exists()]
    print(tables_of(options.output))
    print(f"Left: {', '.join(left)}; the same command continues, see log.txt." if left else "Nothing is left.")


if __name__ == "__main__":
    main()
