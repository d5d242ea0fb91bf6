"""Run the settings of a study in batches on several processes; keep what has been run; tables and figures of it."""

import argparse
import json
import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import pandas as pd
import torch

from lightning_fire.experiments.tables import difference_cell, with_spread
from lightning_fire.nets import MLP
from lightning_fire.when import AtNewData, Schedule
from studies.ensemble import Act, Member, train
from studies.streams import CLASSES, PIXELS, STREAMS, Stream, data_of

MOST = 40  # members of a batch: more are not faster
COLUMNS = ("stream", "method", "seed", "normalization", "width", "rate")
Row = dict[str, object]
RunBatch = Callable[[Sequence[Any]], list[Row]]


@dataclass(frozen=True)
class Setting:
    """One run.

    Attributes:
        stream: Name of the stream.
        method: Name of the method, for the table.
        seed: Of initial weights and data.
        normalization: Of the hidden layers of the MLP.
        width: Of its two hidden layers.
        rate: Learning rate; None: that of the stream.
        act: The method.
        when: When it acts.
        tasks: The stream, if not the one of that name.
    """

    stream: str
    method: str
    seed: int
    act: Act = field(compare=False, repr=False)
    normalization: str = "none"
    width: int = 100
    rate: float | None = None
    when: Schedule = field(default_factory=AtNewData)
    tasks: Stream | None = field(default=None, compare=False, repr=False)

    @property
    def shape(self) -> tuple[object, ...]:
        """Common settings of the members of one batch."""
        return self.stream, self.normalization, self.width

    def row(self, member: Member) -> Row:
        """Return a row of the table of results; accuracies are means over the first or last fifth of the chunks."""
        fifth = max(1, len(member.online) // 5)
        named = {name: value for name, value in vars(self).items() if name in COLUMNS and value is not None}
        return {
            **named,
            "online_first": sum(member.online[:fifth]) / fifth,
            "online_last": sum(member.online[-fifth:]) / fifth,
            "test_last": sum(member.test[-fifth:]) / fifth,
            "kept": sum(member.kept) / len(member.kept),
            "events": len(member.events),
            "by_chunk": json.dumps({"online": member.online, "test": member.test, "kept": member.kept}),
        }


def members_of(settings: Sequence[Setting]) -> tuple[Stream, list[Member]]:
    """Return the stream of settings of one shape, and a new network for each."""
    stream, members = settings[0].tasks or STREAMS[settings[0].stream], []
    for setting in settings:
        torch.manual_seed(setting.seed)
        network = MLP(PIXELS, CLASSES, [setting.width] * 2, setting.normalization)
        members.append(Member(network, setting.seed, setting.act, setting.when, setting.rate or stream.rate))
    return stream, members


def run_batch(settings: Sequence[Setting]) -> list[Row]:
    """Train settings of one shape together and return their rows."""
    torch.set_num_threads(1)
    stream, members = members_of(settings)
    train(members, partial(data_of, stream))
    return [setting.row(member) for setting, member in zip(settings, members, strict=True)]


def run(settings: Sequence[Any], folder: Path, jobs: int = 2, run_batch: RunBatch = run_batch) -> pd.DataFrame:
    """Run settings and return a row for each; those that are in the folder's `results.csv` are not run again.

    A setting has a `shape`, common to a batch, a `method` and a `seed`, and its `repr` names it. `run_batch` returns
    the rows of a batch.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path, start = folder / "results.csv", time.perf_counter()
    ordered = sorted(settings, key=lambda setting: (repr(setting.shape), setting.method, setting.seed))
    done = pd.read_csv(path) if path.exists() else pd.DataFrame()
    known = set(done["setting"]) if len(done) else set()
    batches = []
    for _, group in groupby(ordered, key=lambda setting: setting.shape):
        new = [setting for setting in group if repr(setting) not in known]
        count = -(-len(new) // MOST)
        batches += [new[index::count] for index in range(count)]
    for number, (batch, rows) in enumerate(_results(batches, jobs, run_batch), 1):
        named = [{"setting": repr(setting), **row} for setting, row in zip(batch, rows, strict=True)]
        done = pd.concat([done, pd.DataFrame(named)], ignore_index=True)
        done.to_csv(path, index=False)
        print(f"{number} of {len(batches)} batches, {(time.perf_counter() - start) / 60:.1f} minutes", flush=True)
    return done.set_index("setting").loc[[repr(setting) for setting in settings]].reset_index()


def _results(batches: Sequence[list[Any]], jobs: int, run_batch: RunBatch) -> Iterator[tuple[list[Any], list[Row]]]:
    """Run batches on processes, one job in this one, and return each as it ends."""
    if jobs == 1:
        yield from ((batch, run_batch(batch)) for batch in batches)
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        running = {pool.submit(run_batch, batch): batch for batch in batches}
        yield from ((running[future], future.result()) for future in as_completed(running))


def settings_of(streams: Iterable[str], methods: Mapping[str, Act], seeds: Iterable[int], **others: object) -> list:
    """Return the settings of all methods, streams and seeds."""
    seeds = list(seeds)
    return [
        Setting(stream, name, seed, act, **others)
        for stream in streams
        for name, act in methods.items()
        for seed in seeds
    ]


def cell(runs: pd.DataFrame, method: str, reference: str | None = None, measure: str = "online_last") -> str:
    """Format mean ± standard deviation of a method in percent, or its paired difference to a reference with 95 %."""
    own = runs[runs.method == method].set_index("seed")[measure] * 100
    if reference is None:
        return with_spread(list(own), digits=1)
    other = runs[runs.method == reference].set_index("seed")[measure] * 100
    return difference_cell(own.to_dict(), other.to_dict(), digits=1)


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown, with the first column to the left."""
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def arguments(
    description: str | None, output: str, more: Callable[[argparse.ArgumentParser], object] = lambda parser: None
) -> argparse.Namespace:
    """Return the arguments of a study's command; `more` adds some of its own."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("runs") / output, help="where results are kept")
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds, from --first-seed on")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="processes, each on one core")
    more(parser)
    options = parser.parse_args()
    options.seed_range = range(options.first_seed, options.first_seed + options.seeds)
    return options


def measure_of(stream: str) -> str:
    """Return the column that counts: online accuracy on streams; test accuracy where data only grows."""
    return "test_last" if stream.startswith("warm_start") else "online_last"


def tables(runs: pd.DataFrame, streams: Iterable[str], references: Iterable[str | None]) -> str:
    """Return a table of methods by stream for each reference; None: of the accuracies themselves, in percent."""
    streams, methods = list(streams), list(dict.fromkeys(runs.method))
    parts = []
    for reference in references:
        head = "method" if reference is None else f"minus `{reference}` (95 %)"
        of = {stream: runs[runs.stream == stream] for stream in streams}
        rows = [
            [f"`{method}`", *(cell(of[stream], method, reference, measure_of(stream)) for stream in streams)]
            for method in methods
        ]
        parts.append(markdown([head, *(stream.replace("_", " ") for stream in streams)], rows))
    return "\n\n".join(parts)


def draw_bars(panels: Mapping[str, pd.DataFrame], path: Path) -> None:
    """Draw the accuracies of methods in panels of one stream each: bars are means, points are seeds."""
    methods = list(dict.fromkeys(method for runs in panels.values() for method in runs.method))
    size = (2.6 * len(panels) + 2.2, 0.27 * len(methods) + 1.3)
    figure, grid = plt.subplots(1, len(panels), figsize=size, sharey=True, squeeze=False)
    for axes, (title, runs) in zip(grid[0], panels.items(), strict=True):
        for place, method in enumerate(methods):
            own = runs[runs.method == method][measure_of(runs.stream.iloc[0])] * 100
            axes.barh(place, own.mean(), color="tab:orange" if method.startswith("fire") else "tab:gray", alpha=0.6)
            axes.plot(own, [place] * len(own), ".", color="black", markersize=4)
        axes.set(title=title, xlabel="accuracy, %", yticks=range(len(methods)))
        axes.set_yticklabels([method.replace("_", " ") for method in methods])
        axes.grid(axis="x", alpha=0.3)
    grid[0, 0].invert_yaxis()
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    plt.close(figure)


def draw_lines(panels: Mapping[str, pd.DataFrame], x: str, path: Path, label: str) -> None:
    """Draw the accuracies of methods along a column, in panels of one stream each: means as lines, seeds as points."""
    figure, grid = plt.subplots(1, len(panels), figsize=(3.4 * len(panels) + 1.3, 3.4), squeeze=False)
    for axes, (title, runs) in zip(grid[0], panels.items(), strict=True):
        measure, values = measure_of(runs.stream.iloc[0]), list(dict.fromkeys(runs[x]))
        for method in dict.fromkeys(runs.method):
            own = runs[runs.method == method]
            means = [own[own[x] == value][measure].mean() * 100 for value in values]
            (line,) = axes.plot(range(len(values)), means, label=method.replace("_", " "))
            axes.plot(
                [values.index(value) for value in own[x]], own[measure] * 100, ".", color=line.get_color(), alpha=0.5
            )
        axes.set(title=title, xlabel=label)
        axes.set_xticks(range(len(values)), [str(value) for value in values])
        axes.grid(alpha=0.3)
    grid[0, 0].set_ylabel("accuracy, %")
    grid[0, -1].legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    plt.close(figure)


def finish(runs: pd.DataFrame, start: float) -> None:
    """Print how many runs there are and how long this command took."""
    print(f"\n{len(runs)} runs; this command took {(time.perf_counter() - start) / 60:.1f} minutes")
