"""Values of a network before an event as predictors of its gain, over some hundred runs and their events.

python -m studies.signs --seeds 20   # tables, results.csv, events.csv and signs.png in runs/signs

At the start of some chunks of data a run without a method is repeated from there with an event of FIRE. The gain of
the event is the accuracy of the chunk with it minus that without it: the online accuracy, and on growing data the test
accuracy at the end. Settings: three streams and growing data, at three learning rates each; with `--months`, the events
of a file of the same columns, as of `examples/twelve_months.py`.
"""

import argparse
import json
import time
from collections.abc import Sequence
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
# Each value, and -1 if it is the smaller one that goes with a larger gain, over all events.
SIGNS = {
    "accuracy_lost": 1,
    "dfi_normalized": 1,
    "dfi_gained": 1,
    "weight_norm": 1,
    "gradient_norm": -1,
    "dormant_fraction": 1,
    "srank": -1,
    "stable_rank": -1,
    "entropy_rank": -1,
    "monitored_readiness": 1,
    "monitored_sharpness": -1,
    "monitored_lambda_max": -1,
    "accuracy_new": -1,
    "loss_new": 1,
    "readiness": -1,
    "critical_sharpness": -1,
    "lambda_max": -1,
    "readiness_lost": -1,
    "sharpness_gained": -1,
    "lambda_max_gained": -1,
    "readiness_won": -1,
    "lambda_max_won": -1,
    "trial_won": 1,
    "chunk": 1,
}


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
        others = others.assign(setting="months", rate=others.get("rate", 0.0))
        found = pd.concat([found, others.reindex(columns=found.columns)], ignore_index=True)
    return found


def oriented(events: pd.DataFrame) -> pd.DataFrame:
    """Return the events with each value times its sign in `SIGNS`."""
    return events.assign(**{name: sign * events[name] for name, sign in SIGNS.items()})


def measured(events: pd.DataFrame, resamples: int) -> dict[str, dict[str, pd.DataFrame]]:
    """Return `intervals` of each value, by kind and column of the tables.

    Returns:
        `correlation`: of the events within each setting and rate, of all, and of each setting. `area` and `right`: of
        each setting, `right` also their mean, and of `none`, the answer that is more frequent in the other settings.
    """
    names, settings = list(SIGNS), list(dict.fromkeys(events.setting))
    events = oriented(events).assign(none=1.0)
    of = {setting: events[events.setting == setting] for setting in settings}

    def found(own: pd.DataFrame, measure: Measure) -> pd.DataFrame:
        return intervals(own, measure, resamples)

    def mean(own: pd.DataFrame) -> pd.Series:
        return pd.DataFrame([right[name](part) for name, part in own.groupby("setting")]).mean()

    right = {name: right_elsewhere(events, [*names, "none"], name) for name in settings}

    plain = partial(rank_correlations, names=names)
    within = partial(rank_correlations, names=names, within=("setting", "rate"))
    correlation = {"same setting and rate": found(events, within), "all": found(events, plain)}
    return {
        "correlation": correlation | {name: found(own, plain) for name, own in of.items()},
        "area": {name: found(own, partial(areas, names=names)) for name, own in of.items()},
        "right": {"mean": found(events, mean)} | {name: found(own, right[name]) for name, own in of.items()},
    }


def tables(found: dict[str, dict[str, pd.DataFrame]]) -> str:
    """Return the tables of `measured`, with the values in the order of their correlation within settings and rates."""
    order = list(found["correlation"]["same setting and rate"].estimate.sort_values(ascending=False).index)
    heads = {
        "correlation": "rank correlation with the gain (95 %)",
        "area": "area under the ROC curve, gain or not (95 %)",
        "right": "% right with a threshold of the other settings (95 %)",
    }
    parts = []
    for kind, columns in found.items():
        factor, digits = (100, 0) if kind == "right" else (1, 2)
        names = [*order, "none"] if kind == "right" else order
        rows = [[_label(name), *(_cell(own.loc[name], factor, digits) for own in columns.values())] for name in names]
        head = [heads[kind], *(name.replace("_", " ") for name in columns)]
        if kind == "correlation":
            head.insert(2, "less than the first")
            first = columns["same setting and rate"]
            for name, row in zip(names, rows, strict=True):
                row.insert(2, _cell(first.loc[name], 1, 2, ("behind", "behind_low", "behind_high")))
        parts.append(markdown(head, rows))
    return "\n\n".join(parts)


def _label(name: str) -> str:
    return f"{'−' if SIGNS.get(name, 1) < 0 else ''}`{name}`"


def _cell(row: pd.Series, factor: int, digits: int, of: Sequence[str] = ("estimate", "low", "high")) -> str:
    """Format an estimate with its interval; a dash where there is none."""
    middle, low, high = (f"{factor * row[name]:.{digits}f}" for name in of)
    return "–" if "nan" in middle else f"{middle} ({low} to {high})"


def draw(found: dict[str, dict[str, pd.DataFrame]], path: Path) -> None:
    """Draw the rank correlations with their intervals, and areas and fractions right by setting."""
    first = found["correlation"]["same setting and rate"].sort_values("estimate")
    places = dict(zip(first.index, range(len(first)), strict=True))
    figure, grid = plt.subplots(1, 3, figsize=(12, 0.27 * len(first) + 1.5), sharey=True)
    grid[0].errorbar(first.estimate, range(len(first)), xerr=_bars(first), fmt="o", color="black", markersize=4)
    for axes, kind in zip(grid[1:], ("area", "right"), strict=True):
        for setting, own in found[kind].items():
            if setting == "mean":
                continue
            of = own.loc[[name for name in own.index if name in places]]
            axes.plot(of.estimate, [places[name] for name in of.index], "o", alpha=0.7, label=setting.replace("_", " "))
    titles = ("rank correlation, same setting and rate", "area under the ROC curve", "right with others' threshold")
    for axes, title, chance in zip(grid, titles, (0, 0.5, 0.5), strict=True):
        axes.axvline(chance, color="grey", linewidth=1)
        axes.set(title=title, yticks=range(len(first)))
        axes.grid(alpha=0.3)
    grid[0].set_yticklabels([f"{'−' if SIGNS[name] < 0 else ''}{name.replace('_', ' ')}" for name in first.index])
    grid[1].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=100)


def _bars(own: pd.DataFrame) -> list[pd.Series]:
    return [(own.estimate - own.low).clip(lower=0), (own.high - own.estimate).clip(lower=0)]


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
    found = measured(events, options.resamples)
    print(f"\n{tables(found)}")
    draw(found, options.folder / "signs.png")
    finish(runs, start)


if __name__ == "__main__":
    main()
