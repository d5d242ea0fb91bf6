"""Metrics before an event as predictors of its gain: rank correlations over some hundred events.

python -m studies.signs   # tables, results.csv and signs.png in runs/signs

Of each run of vanilla there are copies in which FIRE acts once, at the start of one task. The gain of an event is the
online accuracy of that task minus that of vanilla, whose weights were the same until then; the metrics are vanilla's at
the start of the task, readiness and critical sharpness on 200 samples of the new task. Settings: three streams, three
learning rates.
"""

import argparse
import json
import time
from dataclasses import dataclass

import matplotlib.pyplot as plt
import pandas as pd

from lightning_fire.when import Clock, Schedule
from studies.methods import fire, vanilla
from studies.runs import Setting, arguments, markdown, run

CHUNKS = {"random_labels": (1, 4, 8, 14), "permuted_inputs": (1, 4, 8, 14), "permuted_labels": (1, 9, 19, 39)}
RATES = (1e-3, 3e-3, 1e-2)
SIGNS = ("accuracy_lost", "dfi", "norm", "dormant", "effective_rank", "readiness", "critical_sharpness", "chunk")


@dataclass(frozen=True)
class AtChunk(Schedule):
    """At the start of one chunk."""

    chunk: int

    def due(self, clock: Clock) -> bool:
        """Return whether the chunk starts."""
        return clock.new_data and clock.chunk == self.chunk


def events(runs: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each event, with its gain in points and the metrics before it."""
    keys, rows = ["stream", "rate", "seed"], []
    for key, group in runs.groupby(keys):
        record = {method: json.loads(own) for method, own in zip(group.method, group.by_chunk, strict=True)}
        online = record["vanilla"]["online"]
        for chunk in CHUNKS[key[0]]:
            signs = {name: record["vanilla"][name][chunk - 1] for name in SIGNS[1:-1]}
            signs["accuracy_lost"] = online[0] - online[chunk - 1]  # of the task before, to the first task
            gain = record[f"fire_at_{chunk}"]["online"][chunk] - online[chunk]
            rows.append({**dict(zip(keys, key, strict=True)), "chunk": chunk, "gain": 100 * gain, **signs})
    return pd.DataFrame(rows)


def correlations(found: pd.DataFrame) -> str:
    """Return Spearman's rank correlations with the gain: of all events, and of those of each stream."""
    groups = {"all": found} | {name.replace("_", " "): own for name, own in found.groupby("stream", sort=False)}
    groups |= {f"rate {rate:g}": own for rate, own in found.groupby("rate")}
    rows = [
        [f"`{sign}`", *(f"{own[sign].corr(own.gain, method='spearman'):+.2f}" for own in groups.values())]
        for sign in SIGNS
    ]
    head = ["metric before the event", *(f"{name} ({len(own)})" for name, own in groups.items())]
    return markdown(head, rows)


def by_sign(found: pd.DataFrame) -> str:
    """Return the mean gain in thirds of the events, ordered by each metric."""
    rows = []
    for sign in SIGNS:
        third = found[sign].rank(method="first", pct=True).mul(3).apply(lambda value: min(int(value), 2))
        gains = [found[third == number].gain for number in range(3)]
        limits = [found[third == number][sign].max() for number in range(2)]
        cells = [f"{own.mean():+.1f} ({(own > 0).mean():.0%} gained)" for own in gains]
        rows.append([f"`{sign}`", ", ".join(f"{limit:.2f}" for limit in limits), *cells])
    return markdown(["metric", "limits of the thirds", "lowest third", "middle", "highest third"], rows)


def more(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that choose a part of the settings."""
    parser.add_argument("--streams", nargs="+", choices=CHUNKS, default=list(CHUNKS))
    parser.add_argument("--rates", nargs="+", type=float, default=RATES, help="learning rates")


def main() -> None:
    """Run the study."""
    options, start = arguments(__doc__, "signs", more), time.perf_counter()
    settings = []
    for stream in options.streams:
        chunks = CHUNKS[stream]
        for rate in options.rates:
            for seed in options.seed_range:
                common = {"rate": rate, "signs": True}
                settings.append(Setting(stream, "vanilla", seed, vanilla, **common))
                settings += [
                    Setting(stream, f"fire_at_{chunk}", seed, fire, when=AtChunk(chunk), **common) for chunk in chunks
                ]
    runs = run(settings, options.folder, options.jobs)
    found = events(runs)
    found.to_csv(options.folder / "events.csv", index=False)
    print(f"{len(found)} events, of which {(found.gain > 0).mean():.0%} gained")
    print(f"\n{correlations(found)}\n\n{by_sign(found)}")
    figure, grid = plt.subplots(1, len(SIGNS) - 1, figsize=(3 * (len(SIGNS) - 1), 3), sharey=True)
    for axes, sign in zip(grid, SIGNS[:-1], strict=True):
        for stream, own in found.groupby("stream", sort=False):
            axes.plot(own[sign], own.gain, ".", alpha=0.5, label=stream.replace("_", " "))
        axes.axhline(0, color="grey", linewidth=1)
        axes.set(xlabel=f"{sign.replace('_', ' ')} before the event")
        axes.grid(alpha=0.3)
    grid[0].set_ylabel("gain of FIRE in the task, points")
    grid[0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(options.folder / "signs.png", dpi=100)
    print(f"\n{len(runs)} runs; this command took {(time.perf_counter() - start) / 60:.1f} minutes")


if __name__ == "__main__":
    main()
