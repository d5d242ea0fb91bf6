"""Slow drift: tasks that come gradually. What is lost, which method helps, and when it should act.

python -m studies.drift   # tables; results.csv, drift.csv, drift.png in runs/drift; --times: also events at other times

Streams whose samples change from one task to the next over a fraction of each task, its drift: 0, at once; 1, over the
whole task. Labels change sample by sample, pixels are interpolated. Methods act at the start of each task, where the
drift begins. `young` is a new network at every second task, counted in the tasks between: it knows the task before, as
vanilla does, but none before that. All accuracies are of these tasks, in the last third of the stream.
"""

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from lightning_fire.data import Stream as Tasks
from lightning_fire.when import AtNewData, Clock, EveryNSteps, Schedule, WhenMetric
from studies.ensemble import Act
from studies.methods import METHODS, reset
from studies.runs import Setting, arguments, cell, draw_lines, finish, markdown, run
from studies.streams import STREAMS, Stream

DRIFTS = (0.0, 0.1, 0.5, 1.0)
NAMES = ("random_labels", "permuted_labels", "permuted_inputs")
ACTING = ("full_reset", "reset_head", "shrink_and_perturb", "fire", "fire_procrustes")
TIMED = ("full_reset", "fire", "fire_procrustes")
DRAWN = ("vanilla", "young", "full_reset", "fire", "fire_procrustes")
Parts = Mapping[tuple[str, float], pd.DataFrame]  # runs by stream and drift


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
    """Return a stream of the studies with a drift."""
    protocol: Tasks = STREAMS[name].protocol  # type: ignore[assignment]
    return STREAMS[name]._replace(protocol=replace(protocol, drift=drift))


def steps_of(tasks: Stream) -> int:
    """Return the optimizer steps of a task."""
    protocol: Tasks = tasks.protocol  # type: ignore[assignment]
    return protocol.epochs_per_chunk[0] * -(-(protocol.samples_per_task or 0) // tasks.batch_size)


def times(drift: float, steps: int) -> Mapping[str, Schedule]:
    """Return the schedules other than at the start; the end of a drift of a whole task is the next one's start."""
    known = {"middle": AtPart(drift / 2, steps)} | ({"end": AtPart(drift, steps)} if drift < 1 else {})
    every, metric = EveryNSteps(round(1.3 * steps)), WhenMetric("accuracy", below=0.4)
    return (known if drift else {}) | {"every_1.3_tasks": every, "when_accuracy_0.4": metric}


def settings(streams: Sequence[str], seeds: Sequence[int], other_times: bool) -> list[Setting]:
    """Return the settings of streams with all drifts, with events at the start of each task, or also at other times."""
    found = []
    for name in streams:
        for drift in DRIFTS:
            tasks, label = tasks_of(name, drift), f"{name},drift={drift:g}"
            runs: list[tuple[str, Act, Schedule]] = [("young", reset, AtOddTasks())]
            runs += [(method, METHODS[method], AtNewData()) for method in ("vanilla", *ACTING)]
            if other_times:
                for at, when in times(drift, steps_of(tasks)).items():
                    runs += [(f"{method} {at}", METHODS[method], when) for method in TIMED]
            for method, act, when in runs:
                found += [Setting(label, method, seed, act, when=when, tasks=tasks) for seed in seeds]
    return found


def counted(by_chunk: str, what: str) -> float:
    """Return the mean accuracy of the tasks that count: of 2, 4, 6, …, counted from 0, those in the last third."""
    values = json.loads(by_chunk)[what]
    start = len(values) - len(values) // 3
    return float(pd.Series(values[start + start % 2 :: 2]).mean())


def what_is_lost(parts: Parts) -> str:
    """Return a table of how much lower vanilla's accuracy is than that of a young network."""
    rows = [
        [
            f"{name.replace('_', ' ')}, {drift:g}",
            cell(own, "vanilla"),
            cell(own, "young"),
            cell(own, "vanilla", "young"),
            cell(own, "vanilla", "young", "test_last"),
        ]
        for (name, drift), own in parts.items()
    ]
    head = [
        "stream, drift",
        "vanilla",
        "young",
        "vanilla minus young (95 %)",
        "the same at the end of the tasks (95 %)",
    ]
    return markdown(head, rows)


def minus(parts: Parts, methods: Sequence[str], reference: str) -> str:
    """Return a table of methods by stream and drift: online accuracies minus those of a reference."""
    rows = [
        [
            f"{name.replace('_', ' ')}, {drift:g}",
            *(cell(own, each, reference) if each in set(own.method) else "–" for each in methods),
        ]
        for (name, drift), own in parts.items()
    ]
    heads = [method.removeprefix(f"{reference} ").replace("_", " ") for method in methods]
    return markdown([f"minus `{reference}` (95 %)", *heads], rows)


def more(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that choose a part of the settings."""
    parser.add_argument("--streams", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--times", action="store_true", help="also events at other times than the start of each task")


def main() -> None:
    """Run the study."""
    options, start = arguments(__doc__, "drift", more), time.perf_counter()
    runs = run(settings(options.streams, options.seed_range, options.times), options.folder, options.jobs)
    runs["stream"], drifts = zip(*(stream.split(",drift=") for stream in runs.stream), strict=True)
    runs["drift"] = [float(drift) for drift in drifts]
    for column, what in (("online_last", "online"), ("test_last", "test")):
        runs[column] = [counted(by_chunk, what) for by_chunk in runs.by_chunk]
    parts = {key: own for key, own in runs.groupby(["stream", "drift"], sort=False)}
    print(what_is_lost(parts))
    print("\n" + minus(parts, ACTING, "vanilla"))
    print("\n" + minus(parts, [method for method in ACTING if method != "full_reset"], "full_reset"))
    if options.times:
        for method in TIMED:
            print("\n" + minus(parts, [f"{method} {at}" for at in times(0.5, 1)], method))
    kept = runs[["stream", "drift", "method", "seed", "online_last", "test_last"]]
    kept.to_csv(options.folder / "drift.csv", index=False)
    panels = {
        name.replace("_", " "): runs[(runs.stream == name) & runs.method.isin(DRAWN)].sort_values(
            "drift", kind="stable"
        )
        for name in options.streams
    }
    draw_lines(panels, "drift", options.folder / "drift.png", "drift, fraction of a task")
    finish(runs, start)


if __name__ == "__main__":
    main()
