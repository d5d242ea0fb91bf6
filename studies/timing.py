"""Schedules of FIRE: on every change, on fewer, never, or on a metric, without knowledge of the task boundaries.

python -m studies.timing   # a table; results.csv, timing.csv and timing.png in runs/timing

`every_change` and `every_n_changes` use the boundaries. `every_n_epochs` and `when_…` do not: at the start of each
epoch the latter read metrics of the epoch before, so they react to a new task at least one epoch late. Thresholds were
chosen on seeds 100 to 102, `--all --first-seed 100 --seeds 3`: for each metric the best mean over the streams.
"""

import argparse
import time
from dataclasses import dataclass
from functools import partial

from lightning_fire.when import AtNewData, Clock, EveryNEpochs, Schedule, WhenMetric
from studies.ensemble import Act
from studies.methods import fire, vanilla
from studies.runs import Setting, arguments, draw_bars, finish, run, tables
from studies.streams import STREAMS

NAMES = ("random_labels", "permuted_inputs", "warm_start")  # permuted labels: a task is an epoch


@dataclass(frozen=True)
class EveryNChanges(Schedule):
    """At every n-th change of the data."""

    n: int

    def due(self, clock: Clock) -> bool:
        """Return whether the data has changed a multiple of n times."""
        return clock.new_data and clock.chunk > 0 and clock.chunk % self.n == 0


KNOWN = {"every_change": AtNewData(), "every_2_changes": EveryNChanges(2), "every_5_changes": EveryNChanges(5)}
TRIED = {
    "when_accuracy": [WhenMetric("accuracy", below=value) for value in (0.15, 0.25, 0.4)],
    "when_dfi": [WhenMetric("dfi", above=value) for value in (1.0, 1.2, 1.5, 2.0)],
    "when_dormant": [WhenMetric("dormant", above=value) for value in (0.1, 0.2, 0.4)],
    "when_effective_rank": [WhenMetric("effective_rank", below=value) for value in (40, 30, 20)],
    "when_norm": [WhenMetric("norm", above=value) for value in (22, 26, 32)],
    "every_n_epochs": [EveryNEpochs(value) for value in (10, 25, 50)],
}
CHOSEN = {  # index of the threshold
    "when_accuracy": 2,
    "when_dfi": 3,
    "when_dormant": 2,
    "when_effective_rank": 2,
    "when_norm": 1,
    "every_n_epochs": 1,
}
ACTS: dict[str, Act] = {"": fire, "procrustes_": partial(fire, scale="procrustes")}


def value_of(schedule: Schedule) -> float:
    """Return the threshold or period of a schedule."""
    return next(value for name in ("n", "above", "below") if (value := getattr(schedule, name, None)) is not None)


def settings(options: argparse.Namespace) -> list[Setting]:
    """Return the settings: of all thresholds, or of those chosen."""
    schedules = {"": KNOWN} | {
        name: {f"{name}_{value_of(each):g}": each for each in (tried if options.all else [tried[CHOSEN[name]]])}
        for name, tried in TRIED.items()
    }
    found = []
    for stream in NAMES:
        for seed in options.seed_range:
            found.append(Setting(stream, "vanilla", seed, vanilla))
            for group in schedules.values():
                found += [
                    Setting(stream, f"{prefix}{name}", seed, act, when=when)
                    for name, when in group.items()
                    for prefix, act in (ACTS.items() if name == "every_change" else [("", fire)])
                ]
    return found


def main() -> None:
    """Run the study."""
    options = arguments(__doc__, "timing", lambda parser: parser.add_argument("--all", action="store_true"))
    start, runs = time.perf_counter(), run(settings(options), options.folder, options.jobs)
    print(tables(runs, NAMES, ("vanilla", "every_change")))
    kept = runs[["stream", "method", "seed", "online_last", "test_last", "events"]]
    kept.to_csv(options.folder / "timing.csv", index=False)
    draw_bars({STREAMS[name].title: runs[runs.stream == name] for name in NAMES}, options.folder / "timing.png")
    finish(runs, start)


if __name__ == "__main__":
    main()
