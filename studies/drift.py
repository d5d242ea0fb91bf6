"""Slow drift: tasks that come gradually. What is lost, which method helps, and when it should act.

python -m studies.drift   # tables, results.csv and drift.png in runs/drift

Streams whose samples change from one task to the next over a fraction of each task, its drift: 0, at once; 1, over the
whole task. Labels change sample by sample, pixels are interpolated, or permuted anew image by image ("by image").
`young` is a new network at every second task, counted in the tasks between: it knows the task before, as vanilla does,
but not those before that. All accuracies are of these tasks, in the last third of the stream.
"""

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from lightning_fire.data import PermutedInputs
from lightning_fire.data import Stream as Tasks
from lightning_fire.when import AtNewData, Clock, EveryNSteps, Schedule, WhenMetric
from studies.ensemble import Act
from studies.methods import METHODS, reset
from studies.runs import Setting, arguments, cell, draw_lines, finish, markdown, run
from studies.streams import STREAMS, Stream

DRIFTS = (0.0, 0.1, 0.5, 1.0)
NAMES = ("random_labels", "permuted_labels", "permuted_inputs", "permuted_inputs_by_image")
LONGER = ("random_labels_longer", "permuted_inputs_longer")  # twice the epochs
ACTING = ("full_reset", "reset_head", "shrink_and_perturb", "fire", "fire_procrustes")
TIMED = ("full_reset", "fire", "fire_procrustes")


class PermutedByImage(PermutedInputs):
    """Permuted inputs that drift from one permutation to the next image by image."""

    between = Tasks.between


@dataclass(frozen=True)
class AtPart(Schedule):
    """Once in each task but the first.

    Attributes:
        part: Fraction of the task that is done then.
        steps: Optimizer steps of a task.
    """

    part: float
    steps: int

    def due(self, clock: Clock) -> bool:
        """Return whether that fraction of a task is done."""
        return clock.chunk > 0 and clock.step % self.steps == round(self.part * self.steps)


class AtOddTasks(Schedule):
    """At the starts of tasks 1, 3, 5, …, counted from 0."""

    def due(self, clock: Clock) -> bool:
        """Return whether one of them starts."""
        return clock.new_data and clock.chunk % 2 == 1


def tasks_of(name: str, drift: float) -> Stream:
    """Return a stream with a drift, by its name in `NAMES` or `LONGER`."""
    base = STREAMS[name.removesuffix("_by_image").removesuffix("_longer")]
    protocol: Tasks = base.protocol  # type: ignore[assignment]
    if name.endswith("_by_image"):
        protocol = PermutedByImage(protocol.num_chunks, protocol.samples_per_task, protocol.epochs)
    if name.endswith("_longer"):
        protocol = replace(protocol, epochs=2 * protocol.epochs_per_chunk[0])
    return base._replace(protocol=replace(protocol, drift=drift))


def steps_of(tasks: Stream) -> int:
    """Return the optimizer steps of a task."""
    protocol: Tasks = tasks.protocol  # type: ignore[assignment]
    return protocol.epochs_per_chunk[0] * -(-(protocol.samples_per_task or 0) // tasks.batch_size)


def times(drift: float, steps: int) -> Mapping[str, Schedule]:
    """Return the schedules other than at the start; the end of a drift of a whole task is the next one's start."""
    known = {"middle": AtPart(drift / 2, steps)} | ({"end": AtPart(drift, steps)} if drift < 1 else {})
    unknown = {
        "every_1.3_tasks": EveryNSteps(round(1.3 * steps)),
        "when_accuracy_0.4": WhenMetric("accuracy", below=0.4),
    }
    return (known if drift else {}) | unknown


def settings(seeds: Sequence[int]) -> list[Setting]:
    """Return the settings of all streams, drifts, methods and times."""
    found = []
    for name in (*NAMES, *LONGER):
        for drift in DRIFTS:
            if (name == "permuted_inputs_by_image" and not drift) or (name in LONGER and drift not in (0, 0.5)):
                continue
            tasks = tasks_of(name, drift)
            runs: list[tuple[str, Act, Schedule]] = [
                ("vanilla", METHODS["vanilla"], AtNewData()),
                ("young", reset, AtOddTasks()),
            ]
            acting = ("full_reset",) if name in LONGER else ACTING
            runs += [(method, METHODS[method], AtNewData()) for method in acting]
            if name not in LONGER and not name.endswith("_by_image") and drift != 0.1:
                every = times(drift, steps_of(tasks))
                runs += [
                    (f"{method} {time}", METHODS[method], when) for time, when in every.items() for method in TIMED
                ]
            label = f"{name},drift={drift:g}"
            for method, act, when in runs:
                found += [Setting(label, method, seed, act, when=when, tasks=tasks) for seed in seeds]
    return found


def counted(by_chunk: str, what: str) -> float:
    """Return the mean accuracy of the tasks that count, in the last third: 2, 4, 6, …, counted from 0."""
    values = json.loads(by_chunk)[what]
    start = len(values) - len(values) // 3
    return float(pd.Series(values[start + start % 2 :: 2]).mean())


def main() -> None:
    """Run the study."""
    options, start = arguments(__doc__, "drift", more), time.perf_counter()
    chosen = [each for each in settings(options.seed_range) if each.stream.split(",")[0] in options.streams]
    runs = run(chosen, options.folder, options.jobs)
    runs["label"], runs["drift"] = zip(*(stream.split(",drift=") for stream in runs.stream), strict=True)
    runs["drift"] = runs.drift.astype(float)
    for column, what in (("online_last", "online"), ("test_last", "test")):
        runs[column] = [counted(by_chunk, what) for by_chunk in runs.by_chunk]
    runs["stream"] = runs.label
    parts = {(name, drift): own for (name, drift), own in runs.groupby(["label", "drift"], sort=False)}
    print(what_is_lost(parts))
    print("\n" + minus(parts, ("vanilla", *ACTING), "vanilla", ""))
    for method in TIMED:
        timed = [each for each in dict.fromkeys(runs.method) if each.startswith(f"{method} ")]
        if timed:
            print("\n" + minus(parts, timed, method, f"{method} "))
    panels = {name: runs[(runs.label == name) & runs.method.isin(DRAWN)] for name in NAMES if name in options.streams}
    draw_lines(
        {name.replace("_", " "): own.sort_values(["method", "drift"]) for name, own in panels.items()},
        "drift",
        options.folder / "drift.png",
        "drift, fraction of a task",
    )
    finish(runs, start)


DRAWN = ("vanilla", "young", "full_reset", "fire", "fire_procrustes")


def what_is_lost(parts: Mapping[tuple[str, float], pd.DataFrame]) -> str:
    """Return a table of vanilla's accuracies and what it is below a young network."""
    rows = []
    for (name, drift), own in parts.items():
        rows.append(
            [
                name.replace("_", " "),
                f"{drift:g}",
                *(cell(own, method) for method in ("vanilla", "young")),
                cell(own, "vanilla", "young"),
                cell(own, "vanilla", measure="test_last"),
                cell(own, "vanilla", "young", "test_last"),
                cell(own, "full_reset", "young", "test_last"),
            ]
        )
    head = ["stream", "drift", "vanilla", "young", "vanilla minus young (95 %)"]
    head += [
        "vanilla, end of task",
        "vanilla minus young, end of task (95 %)",
        "full reset minus young, end of task (95 %)",
    ]
    return markdown(head, rows)


def minus(parts: Mapping[tuple[str, float], pd.DataFrame], methods: Sequence[str], reference: str, prefix: str) -> str:
    """Return a table of methods by stream and drift: online accuracies minus those of a reference."""
    rows = []
    for (name, drift), own in parts.items():
        there = set(own.method)
        if not name.endswith("_longer") and len(there & set(methods)) > 1:
            cells = [cell(own, each, reference) if each in there else "–" for each in methods if each != reference]
            rows.append([name.replace("_", " "), f"{drift:g}", *cells])
    names = [each.removeprefix(prefix).replace("_", " ") for each in methods if each != reference]
    return markdown([f"minus `{reference}` (95 %)", "drift", *names], rows)


def more(parser: argparse.ArgumentParser) -> None:
    """Add the argument that chooses a part of the settings."""
    every = (*NAMES, *LONGER)
    parser.add_argument("--streams", nargs="+", choices=every, default=every)


if __name__ == "__main__":
    main()
