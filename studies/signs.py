"""Values of a network before an event as predictors of its gain, over some hundred runs and their events.

python -m studies.signs --seeds 18   # a table; results.csv, events.csv, signs.csv and signs.png in runs/signs

At the start of some chunks of data a run without a method is repeated from there with an event of FIRE. The gain of
the event is the accuracy of the chunk with it minus that without it: the online accuracy, and on growing data the test
accuracy at the end. Settings: three streams and growing data, at three learning rates each; with `--months`, the events
of a file of the same columns, as `studies.months` writes.
"""

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import torch
from torch import Tensor

from lightning_fire.data import Continual
from studies.before_event import act_and_compare
from studies.ensemble import Chunk, Ensemble, chunks_of
from studies.methods import fire, vanilla
from studies.predictors import Measure, areas, intervals, rank_correlations, right_elsewhere
from studies.runs import Row, Setting, arguments, finish, markdown, members_of, run
from studies.streams import Stream, data_of

CHUNKS = {
    "random_labels": (1, 4, 8, 14),
    "permuted_inputs": (1, 4, 8, 14),
    "permuted_labels": (1, 9, 19, 39),
    "growing_data": (1, 3, 6, 9),
}
TASKS = {"growing_data": Stream("growing data", Continual(10, 10), 100, 3e-3)}
RATES = (1e-3, 3e-3, 1e-2)
NEW = slice(-200, None)  # of the samples of a chunk; those that have arrived with it come last
MONTHS = "months"
CORRELATION, AREA, RIGHT = "rank correlation", "area under the ROC curve", "right with others' threshold"
WITHIN = (CORRELATION, "same setting and rate")
COLUMNS = {  # of the table: measure and events, factor, digits
    "rank correlation with the gain (95 %)": (WITHIN, 1, 2),
    "the same in months (95 %)": ((CORRELATION, MONTHS), 1, 2),
    "% right with a threshold of the other settings (95 %)": ((RIGHT, "mean"), 100, 0),
}
KEYS = ("setting", "rate", "seed", "gain")  # columns of events that are not values
Found = Mapping[tuple[str, str], pd.DataFrame]  # `intervals` by measure and events
SHOWN = (  # values of the table; all are in signs.csv
    "srank",
    "accuracy_lost",
    "dormant_fraction",
    "dfi_normalized",
    "trial_won",
    "critical_sharpness",
    "lambda_max",
    "readiness",
)


def run_batch(settings: Sequence[Setting]) -> list[Row]:
    """Train settings of one shape together, each event on a branch; return a row for each, with its events."""
    torch.set_num_threads(1)
    stream, members = members_of(settings)
    ensemble, which = Ensemble(members), CHUNKS[settings[0].stream]
    events: list[list[dict[str, float]]] = [[] for _ in members]
    online: list[Tensor] = []  # of each chunk, (members,)
    last: Chunk | None = None
    for number, chunk in enumerate(islice(chunks_of(members, partial(data_of, stream)), max(which) + 1)):
        if last and number in which:
            state = ensemble.state()
            signs = act_and_compare(ensemble, members, fire, last.samples(NEW), chunk.samples(NEW))
            branch = trained(ensemble, chunk)
            ensemble.load(state)
            own = trained(ensemble, chunk)
            gains = [with_event - without for with_event, without in zip(branch, own, strict=True)]
            gain, lost = gains[0 if stream.protocol.online else 1], online[0] - online[-1]
            for found, values, *pair in zip(events, signs, 100 * gain, lost, strict=True):
                known = dict(zip(("gain", "accuracy_lost"), map(float, pair), strict=True))
                found.append({"chunk": number, **known, **values})
        else:
            own = trained(ensemble, chunk)
        online.append(own[0])
        last = chunk
    return [
        {"stream": setting.stream, "rate": setting.rate, "seed": setting.seed, "events": json.dumps(found)}
        for setting, found in zip(settings, events, strict=True)
    ]


def trained(ensemble: Ensemble, chunk: Chunk) -> tuple[Tensor, Tensor]:
    """Train on a chunk; return the online accuracy of each member and its test accuracy at the end, `(members,)`."""
    online = [chunk.train(ensemble, epoch) for epoch in chunk.epochs]
    return torch.stack(online).mean(0), chunk.test(ensemble)


def events_of(runs: pd.DataFrame, months: Path | None = None) -> pd.DataFrame:
    """Return a row for each event of the runs and of a file: `setting`, `rate`, `seed`, `chunk`, `gain` and values."""
    rows = [
        {"setting": stream, "rate": rate, "seed": seed, **event}
        for stream, rate, seed, own in zip(runs.stream, runs.rate, runs.seed, runs.events, strict=True)
        for event in json.loads(own)
    ]
    found = pd.DataFrame(rows)
    if months:
        others = pd.read_csv(months)
        others = others.assign(setting=MONTHS, rate=others.get("rate", 0.0))
        found = pd.concat([found, others.reindex(columns=found.columns)], ignore_index=True)
    return found


def oriented(events: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, str]]:
    """Return the events with each value times the sign of its correlation with the gain in the other half of the seeds.

    Correlations are within settings and rates, without those of `MONTHS`. So no event has a part in the sign by which
    it is judged.

    Returns:
        The events, and of each value `−` if it is the smaller one that goes with a larger gain, `±` if the halves
        of the seeds disagree, else an empty string.
    """
    names, runs = [name for name in events if name not in KEYS], events[events.setting != MONTHS]
    middle = sorted(set(runs.seed))[runs.seed.nunique() // 2]
    halves = {False: runs[runs.seed >= middle], True: runs[runs.seed < middle]}
    other = {later: rank_correlations(own, names, ("setting", "rate")) for later, own in halves.items()}
    signs = pd.DataFrame(other).fillna(1).ge(0) * 2 - 1
    marks = {2: "", 0: "±", -2: "−"}
    values = events[names] * signs.T.reindex(events.seed >= middle).set_axis(events.index)
    return events.assign(**values), {name: marks[total] for name, total in signs.sum(axis=1).items()}


def measured(events: pd.DataFrame, resamples: int) -> Found:
    """Return `intervals` of the values of `oriented` events, by measure and events.

    Returns:
        `CORRELATION` of the events within each setting and rate, of all, and of each setting. `AREA` of each setting.
        `RIGHT` of each setting and their mean, also of the value `none`, the answer that is more frequent in the other
        settings. `MONTHS`, in which not all values are known, are a setting by themselves: not among the others, all or
        the mean.
    """
    names, settings = [name for name in events if name not in KEYS], list(dict.fromkeys(events.setting))
    events = events.assign(none=1.0)
    runs = events[events.setting != MONTHS]
    of = {setting: events[events.setting == setting] for setting in settings}
    right = {name: right_elsewhere(runs, [*names, "none"], name) for name in settings}

    def mean(own: pd.DataFrame) -> pd.Series:
        return pd.DataFrame([right[name](part) for name, part in own.groupby("setting")]).mean()

    plain, area = partial(rank_correlations, names=names), partial(areas, names=names)
    within = partial(plain, within=("setting", "rate"))
    wanted: dict[tuple[str, str], tuple[pd.DataFrame, Measure]] = {
        WITHIN: (runs, within),
        (CORRELATION, "all"): (runs, plain),
        **{(CORRELATION, name): (own, plain) for name, own in of.items()},
        **{(AREA, name): (own, area) for name, own in of.items()},
        (RIGHT, "mean"): (runs, mean),
        **{(RIGHT, name): (own, right[name]) for name, own in of.items()},
    }
    return {key: intervals(own, measure, resamples) for key, (own, measure) in wanted.items()}


def table(found: Found, marks: Mapping[str, str]) -> str:
    """Return the table of the values of `SHOWN`, in the order of their correlation within settings and rates."""
    columns = {head: (found[key], *form) for head, (key, *form) in COLUMNS.items() if key in found}
    order = found[WITHIN].estimate.sort_values(ascending=False).index
    rows = [
        [f"{marks[name]}`{name}`", *(_cell(own.loc[name], *form) for own, *form in columns.values())]
        for name in order
        if name in SHOWN
    ]
    return markdown(["value", *columns], rows)


def _cell(row: pd.Series, factor: int, digits: int) -> str:
    """Format an estimate with its interval; a dash where there is none."""
    middle, low, high = (f"{factor * row[name]:.{digits}f}" for name in ("estimate", "low", "high"))
    return "–" if "nan" in middle else f"{middle} ({low} to {high})"


def draw(found: Found, marks: Mapping[str, str], path: Path) -> None:
    """Draw the rank correlations with their intervals, and areas and fractions right by setting."""
    first = found[WITHIN].sort_values("estimate")
    positions = range(len(first))
    figure, grid = plt.subplots(1, 3, figsize=(12, 0.27 * len(first) + 1.5), sharey=True)
    bars = [(first.estimate - first.low).clip(lower=0), (first.high - first.estimate).clip(lower=0)]
    grid[0].errorbar(first.estimate, positions, xerr=bars, fmt="o", color="black", markersize=4)
    for axes, measure in zip(grid[1:], (AREA, RIGHT), strict=True):
        for (of, setting), own in found.items():
            if of == measure and setting != "mean":
                axes.plot(own.estimate[first.index], positions, "o", alpha=0.7, label=setting.replace("_", " "))
    for axes, title, chance in zip(grid, (", ".join(WITHIN), AREA, RIGHT), (0, 0.5, 0.5), strict=True):
        axes.axvline(chance, color="grey", linewidth=1)
        axes.set_title(title, fontsize=10)
        axes.set_yticks(positions)
        axes.grid(alpha=0.3)
    grid[0].set_yticklabels([f"{marks[name]}{name.replace('_', ' ')}" for name in first.index])
    grid[2].legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    plt.close(figure)


def more(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this study."""
    parser.add_argument("--settings", nargs="+", choices=CHUNKS, default=list(CHUNKS))
    parser.add_argument("--rates", nargs="+", type=float, default=RATES, help="learning rates")
    parser.add_argument(
        "--months", type=Path, help="events of another study: a CSV file with the columns of events.csv"
    )
    parser.add_argument("--resamples", type=int, default=400, help="of the bootstrap")


def main() -> None:
    """Run the study."""
    options, start = arguments(__doc__, "signs", more), time.perf_counter()
    settings = [
        Setting(name, "vanilla", seed, vanilla, rate=rate, tasks=TASKS.get(name))
        for name in options.settings
        for rate in options.rates
        for seed in options.seed_range
    ]
    runs = run(settings, options.folder, options.jobs, run_batch)
    events = events_of(runs, options.months)
    events.to_csv(options.folder / "events.csv", index=False)
    for name, own in events.groupby("setting", sort=False):
        count = len(own[["rate", "seed"]].drop_duplicates())
        gained = f"{(own.gain > 0).mean():.0%} gained, {own.gain.mean():+.1f} points on average"
        print(f"{name.replace('_', ' ')}: {len(own)} events of {count} runs, {gained}")
    events, marks = oriented(events)
    found = measured(events, options.resamples)
    print(f"\n{table(found, marks)}")
    values = pd.concat(found, names=["measure", "of", "value"]).round(4).reset_index()
    values.insert(3, "sign", [marks.get(name) or "+" for name in values.value])
    values.to_csv(options.folder / "signs.csv", index=False)
    draw(found, marks, options.folder / "signs.png")
    finish(runs, start)


if __name__ == "__main__":
    main()
