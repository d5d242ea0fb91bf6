"""All measurements for one GPU, in slices: the tables of speed, then the paper's warm start with ResNet-18.

    python benchmarks/gpu.py --dry-run                                # the plan; needs no GPU
    python benchmarks/gpu.py --root data [--minutes 10] [--output runs/gpu]

Each call takes at most `--minutes`: it prints the tables of the results so far, in Markdown, and the remaining steps;
call it again until none is left. A step is done if its result is in `--output`: the JSON of a benchmark, the runs of
the warm start, which resume from their checkpoints. A step that failed leaves NAME.failed with the end of its output,
and is tried again once that file is removed. `--root` holds FashionMNIST/raw. Minutes of the plan are estimates for an
H100.
"""

import argparse
import csv
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
from gpu_tables import of_benchmark, of_comparison

FOLDER = Path(__file__).parent
RECIPE = "vision/warm_start/fashion_mnist_resnet18"
METHODS = ("vanilla", "full_reset", "small_reset", "fire", "shrink_and_perturb", "dash")
LEFT = "MINUTES"  # of a command: what is left of the slice
LEAST, AGAIN = 2.0, 0.5  # minutes: the shortest part of a comparison, and the cost of resuming it
SPARE = 0.3  # minutes of each slice, to end the current step and print
BENCHMARKS = {  # minutes, and words of the command
    "projection_cost": (3, "--rounds 5"),
    "event_cost": (4, "--batches 26 --rounds 2"),
    "dash_cost": (2, "--net resnet-18 --rounds 2"),
    "epoch_speed": (2, "--only resnet-18 --batch 256 --batches 100 --rounds 3 --precision bf16-mixed --channels-last"),
    "language_speed": (
        2,
        "--only gpt-2 --batch 12 --block 1024 --accumulate 4 --steps 10 --rounds 3 --precision bf16-mixed",
    ),
}


class Step(NamedTuple):
    """One step of the plan.

    Attributes:
        name: Of its log.
        command: What is run; `LEFT` stands for the minutes that are left.
        minutes: Estimate.
        result: File that it leaves.
        runs: Of a comparison: methods and seeds that the result, a CSV file, has to have. It resumes.
    """

    name: str
    command: tuple[str, ...]
    minutes: float
    result: Path
    runs: frozenset[tuple[str, str]] = frozenset()

    @property
    def done(self) -> bool:
        """Return whether the result exists."""
        if not self.runs or not self.result.is_file():
            return self.result.is_file()
        with self.result.open(newline="") as file:
            return self.runs <= {(row["method"], row["seed"]) for row in csv.DictReader(file)}


def plan(output: Path, root: str, seeds: int) -> list[Step]:
    """Return all steps: the benchmarks, then the warm start, seed by seed."""
    steps = []
    for name, (minutes, words) in BENCHMARKS.items():
        result = output / f"{name}.json"
        command = (sys.executable, str(FOLDER / f"{name}.py"), *words.split(), "--json", str(result))
        steps.append(Step(name, command, minutes, result))
    for n in range(1, seeds + 1):
        folder = output / "warm_start"
        words = [
            sys.executable,
            "-m",
            "lightning_fire",
            "compare",
            RECIPE,
            "--config",
            "vision/gpu",
            "--methods",
            *METHODS,
        ]
        words += ["--seeds", str(n), "--output", str(folder), "--set", f"data.init_args.root={root}"]
        runs = frozenset((method, str(seed)) for method in METHODS for seed in range(n))
        command = (*words, "--max-minutes", LEFT)
        steps.append(Step(f"warm_start_seed{n - 1}", command, 3 + 2.8 * len(METHODS), folder / "results.csv", runs))
    return steps


def slices(steps: Sequence[Step], minutes: float) -> list[list[tuple[Step, float]]]:
    """Assign steps to slices: comparisons in parts, all else whole.

    Raises:
        ValueError: If a step is longer than a slice.
    """
    dealt: list[list[tuple[Step, float]]] = [[]]
    room = minutes
    for step in steps:
        left = step.minutes
        if not step.runs and left > minutes:
            raise ValueError(f"{step.name} takes some {left:g} minutes, more than the {minutes:.1f} of a slice")
        while left > 0:
            if room < (min(LEAST, left) if step.runs else left):
                dealt.append([])
                room = minutes
            part = min(room, left)
            dealt[-1].append((step, part))
            room -= part
            left = left - part + (AGAIN if part < left else 0)
    return dealt


def shown(steps: Sequence[Step], minutes: float) -> str:
    """Return the plan of the remaining steps: a table of the slices, and the command of each step."""
    todo = [step for step in steps if not step.done]
    dealt = slices(todo, minutes)
    lines = ["| slice | steps, with their minutes | minutes |", "|--:|---|--:|"]
    for number, parts in enumerate(dealt, 1):
        names = ", ".join(f"{step.name} {part:.1f}" for step, part in parts)
        lines.append(f"| {number} | {names} | {sum(part for _, part in parts):.1f} |")
    total = sum(part for parts in dealt for _, part in parts)
    lines += [f"\nIn all {total:.1f} minutes, in {len(dealt)} slices of at most {minutes:.1f}:\n"]
    for step in todo:
        command = shlex.join(("python", *step.command[1:])).replace(f"{FOLDER}/", "benchmarks/")
        lines.append(f"- {step.name}, {step.minutes:.1f} minutes: `{command}`")
    return "\n".join(lines)


def work(steps: Sequence[Step], output: Path, minutes: float) -> None:
    """Run the remaining steps in order until the time is over; skip those that have failed before."""
    until, begun = time.monotonic() + 60 * minutes, False
    for step in steps:
        left, failed = (until - time.monotonic()) / 60, output / f"{step.name}.failed"
        if step.done or failed.exists():
            continue
        if begun and left < (LEAST if step.runs else step.minutes):
            return
        whole, begun = not begun, True
        print(f"{step.name}: some {step.minutes:g} minutes, {left:.1f} are left", file=sys.stderr, flush=True)
        log = output / f"{step.name}.log"
        last = max(0.0, left - AGAIN) if left > 1 else left
        code = call([f"{last:.3f}" if word == LEFT else word for word in step.command], log, until)
        if step.done:
            continue
        over = code is None or (step.runs and time.monotonic() > until - 60 * AGAIN - 5)
        if over and (step.runs or not whole):
            return  # it resumes, or has a whole slice next time
        words = log.read_text(errors="replace").splitlines()[-5:]
        reason = "took longer than a slice" if code is None else f"ended with {code}"
        failed.write_text("\n".join([reason, *words]) + "\n")


def call(command: Sequence[str], log: Path, until: float) -> int | None:
    """Run a command, with what it prints in a file; end it when the time is over, and return None then."""
    paths = os.pathsep.join(filter(None, (str(FOLDER.parent), os.environ.get("PYTHONPATH"))))  # of a clone, too
    environment = {"LIGHTNING_FIRE_SAVE_SECONDS": "20", **os.environ, "PYTHONPATH": paths}
    with log.open("a") as file:
        child = subprocess.Popen(command, stdout=file, stderr=file, env=environment, start_new_session=True)
        try:
            return child.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            return None
        finally:  # also where this process is to end
            end(child)


def end(child: subprocess.Popen) -> None:
    """End a process and those that it has started."""
    for number, seconds in ((signal.SIGTERM, 20), (signal.SIGKILL, 20)):
        try:
            os.killpg(child.pid, number)
            child.wait(seconds)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def report(steps: Sequence[Step], output: Path) -> str:
    """Return all tables, and what is left."""
    failed = [step.name for step in steps if not step.done and (output / f"{step.name}.failed").exists()]
    left = [step for step in steps if not step.done and step.name not in failed]
    lines = [f"Failed, see {output}: {', '.join(failed)}."] if failed else []
    minutes = sum(step.minutes for step in left)
    names = ", ".join(step.name for step in left)
    lines.append(
        f"Left: {names}; {minutes:.0f} minutes at most. The same command goes on." if left else "Nothing is left."
    )
    results = [step.result for step in steps if not step.runs and step.result.is_file()]
    folders = dict.fromkeys(step.result.parent for step in steps if step.runs)
    tables = [*map(of_benchmark, results), *(of_comparison(f) for f in folders if (f / "table.txt").is_file())]
    return "\n".join([*tables, *lines])


def main(words: Sequence[str] | None = None) -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true", help="print the plan of what is not done, and do nothing")
    parser.add_argument("--minutes", type=float, default=10, help="of a slice (default: 10)")
    parser.add_argument("--output", type=Path, default=Path("runs/gpu"), help="folder of the results")
    parser.add_argument("--root", default="data", help="folder that holds FashionMNIST/raw (default: data)")
    parser.add_argument("--seeds", type=int, default=3, help="of the warm start (default: 3)")
    options = parser.parse_args(words)
    steps = plan(options.output, options.root, options.seeds)
    try:
        text = shown(steps, options.minutes - SPARE)
    except ValueError as error:
        parser.error(str(error))
    if options.dry_run:
        print(text)
        return
    if not torch.cuda.is_available():
        parser.error("there is no GPU; --dry-run shows the plan")
    if not (Path(options.root) / "FashionMNIST" / "raw").is_dir():
        parser.error(f"{options.root} does not hold FashionMNIST/raw: name its folder with --root")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    options.output.mkdir(parents=True, exist_ok=True)
    work(steps, options.output, options.minutes - SPARE)
    print(report(steps, options.output))


if __name__ == "__main__":
    main()
