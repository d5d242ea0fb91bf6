"""The advice of `decide` at each month of `examples/twelve_months.py`, judged by what deployment sees.

python -m studies.months   # 5 years, 11 decisions each, 3 runs of 4 choices

Each month asks `decide` about the weights that were deployed last month, by the accuracy on the images held out of the
month in hand, deploys the first run of its choice, and asks again next month. The advice is judged on the images of the
next month: it is a hit if the mean accuracy of the choice's networks is within one point of the best choice's. Months
that are done are kept; more `--runs` are added to them, without another choice.
"""

import argparse
import copy
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import redirect_stdout
from itertools import combinations
from multiprocessing import get_context
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from examples import twelve_months
from lightning_fire import FIRE, ShrinkAndPerturb, decide
from lightning_fire.experiments.decide import Start
from lightning_fire.experiments.decision import decision_of
from lightning_fire.experiments.tables import difference_cell, mean
from lightning_fire.methods import Loop
from lightning_fire.recipe.recipe import SCRATCH, VANILLA
from studies.before_event import before, won
from studies.runs import arguments, markdown

METHODS = (FIRE(), ShrinkAndPerturb())
CHOICES = (VANILLA, SCRATCH, *(method.name for method in METHODS))
HIT = 1.0  # points
Values = Mapping[str, Mapping[int, float]]  # accuracy by choice and run
Rule = Callable[[Sequence[Values]], str]


def ask(seed: int, month: int, runs: int, folder: Path) -> None:
    """Ask for one decision and deploy what it chooses; month 0 begins with new weights."""
    own, months = folder / f"seed{seed}" / f"month{month}", twelve_months.months_of(seed, month + 1)
    first, deployed = 100 * month, own / "deployed.ckpt"
    own.mkdir(parents=True, exist_ok=True)
    if month == 0:
        torch.manual_seed(seed)
        twelve_months.fit(twelve_months.Network(), twelve_months.Images(months[:1]), own)
        (own / "best.ckpt").replace(deployed)
        return

    def train(run: int, start: Start) -> float:
        began, kept = time.perf_counter(), own / f"{start.name}_{run}"
        model = start(twelve_months.Network())
        model, trainer = twelve_months.fit(model, twelve_months.Images(months[:-1]), kept)
        row = {
            "seed": seed,
            "month": month,
            "method": start.name,
            "run": run,
            "held_out": twelve_months.accuracy(model, *months[-2]["held_out"]),
            "next_month": twelve_months.accuracy(model, *months[-1]["arriving"]),
            "all_held_out": [twelve_months.accuracy(model, *each["held_out"]) for each in months[:-1]],
            "epochs": trainer.current_epoch,
            "seconds": time.perf_counter() - began,
        }
        (own / f"{start.name}_{run}.json").write_text(json.dumps(row))
        return row["held_out"]

    last = own.parent / f"month{month - 1}" / "deployed.ckpt"
    with (own / "decision.txt").open("w") as file, redirect_stdout(file):
        found = decide(train, last, METHODS, range(first, first + runs), metric="accuracy", output=own)
    if not deployed.exists():
        (own / f"{found.decision.choice}_{first}" / "best.ckpt").replace(deployed)
    for kept in own.glob(f"*_{month}??"):
        shutil.rmtree(kept)


def signs_of(deployed: Path, seed: int, month: int) -> dict[str, float]:
    """Return the values of `studies.signs` of deployed weights, on some images of the month before and of a new month.

    `accuracy_lost` is their accuracy on the images held out of the month before, less that on the new images.
    """
    months = twelve_months.months_of(seed, month)
    model = twelve_months.Network.load_from_checkpoint(deployed, map_location="cpu").eval()
    torch.manual_seed(seed)
    initial, acted = twelve_months.Network().eval().net, copy.deepcopy(model.net)
    old, new = (some(*each["train"], seed) for each in months[-2:])
    values = before(model.net, initial, old, new)
    METHODS[0](acted, Loop(measure=False))
    of_before = twelve_months.accuracy(model, *months[-2]["held_out"])
    lost = of_before - twelve_months.accuracy(model, *months[-1]["train"])
    return {"accuracy_lost": lost, **values, **won(values, acted, new)}


def some(images: Tensor, labels: Tensor, seed: int, count: int = 200) -> tuple[Tensor, Tensor]:
    """Return images drawn at random, and their labels; most of the first are of the newest class."""
    drawn = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))[:count]
    return images[drawn], labels[drawn]


def ask_each_month(seeds: Sequence[int], months: int, runs: int, folder: Path, jobs: int) -> None:
    """Ask in all months of all years, a month of each year in turn."""
    start, done = time.perf_counter(), runs_of(folder)
    counts = done.groupby(["seed", "month"]).size().to_dict() if len(done) else {}

    def needed(seed: int, month: int) -> bool:
        deployed = (folder / f"seed{seed}" / f"month{month}" / "deployed.ckpt").exists()
        return not deployed or (month > 0 and counts.get((seed, month), 0) < runs * len(CHOICES))

    running: dict[Future, tuple[int, int]] = {}
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:

        def go_on(seed: int, month: int) -> None:
            month = next((number for number in range(month, months) if needed(seed, number)), months)
            if month < months:
                running[pool.submit(ask, seed, month, runs, folder)] = seed, month

        for seed in seeds:
            go_on(seed, 0)
        while running:
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                seed, month = running.pop(future)
                future.result()
                print(f"year {seed}, month {month}: {(time.perf_counter() - start) / 60:.1f} minutes", flush=True)
                go_on(seed, month + 1)


def runs_of(folder: Path) -> pd.DataFrame:
    """Return a row for each run that has finished."""
    return pd.DataFrame([json.loads(path.read_text()) for path in sorted(folder.glob("seed*/month*/*_*.json"))])


def events_of(folder: Path) -> pd.DataFrame:
    """Return a row for each decision: the gain of FIRE in points, of the same runs, and the signs before it."""
    rows, runs = [], runs_of(folder)
    for (seed, month), own in runs.groupby(["seed", "month"]) if len(runs) else ():
        if own.method.nunique() < len(CHOICES):  # at work
            continue
        means = 100 * own.pivot(index="run", columns="method", values=["next_month", "held_out"]).dropna().mean()
        gains = {
            name: means[of, "fire"] - means[of, "vanilla"]
            for name, of in {"gain": "next_month", "gain_held_out": "held_out"}.items()
        }
        signs = signs_of(folder / f"seed{seed}" / f"month{month - 1}" / "deployed.ckpt", seed, month)
        rows.append({"setting": "months", "seed": seed, "chunk": month, **gains, **signs})
    return pd.DataFrame(rows)


def by_decision(months: Sequence[Values]) -> str:
    """Return the choice of `decide`, of the last of some months."""
    return decision_of(months[-1], "accuracy").choice or VANILLA


def by_mean(months: Sequence[Values]) -> str:
    """Return the choice with the best mean, without a test; the first in `CHOICES` of equal ones."""
    means = {choice: mean(of.values()) for choice, of in months[-1].items()}
    return max(means, key=lambda choice: (means[choice], -CHOICES.index(choice)))


def by_leading(months: Sequence[Values]) -> str:
    """Leading choice of the decision in the last of some months, see `Decision.leading`."""
    return decision_of(months[-1], "accuracy").leading or VANILLA


def so_far(rule: Rule) -> Rule:
    """Return a rule that gets the means of all months together, with a month as a seed."""

    def rule_so_far(months: Sequence[Values]) -> str:
        return rule([{c: {i: mean(each[c].values()) for i, each in enumerate(months)} for c in months[-1]}])

    return rule_so_far


def always(choice: str) -> Rule:
    """Return a rule that makes one choice."""
    return lambda months: choice


ASKED = {"the choice": by_decision, "what leads": by_leading, "best mean": by_mean}
ASKED |= {f"{name} of all months so far": so_far(rule) for name, rule in ASKED.items()}


def judged(runs: pd.DataFrame, rule: Rule, by: str = "held_out", count: int | None = None) -> pd.DataFrame:
    """Choice of a rule in each month, and its gain in the next.

    Args:
        runs: As `runs_of`.
        rule: From the accuracies of each choice, of the months so far, to a choice.
        by: Accuracies that the rule gets: `held_out`, of the month in hand; `next_month`, of the month before, as its
            next month has come by now. Without any, as in month 1, the choice is vanilla.
        count: Decide with so many of the runs of a choice, once with each subset of them. Default: all.

    Returns:
        A row for each year, month and subset: `choice`; `regret`, by how many points the next month's mean accuracy of
        all runs of the best choice is above that of the chosen one; `gain`, of the chosen one above vanilla's.
    """
    rows = []
    for seed, year in runs.assign(run=runs.run % 100).groupby("seed"):
        months, numbers = [own for _, own in year.groupby("month")], sorted(set(year.run))
        for subset in combinations(numbers, count or len(numbers)):
            asked = [
                {choice: dict(zip(of.run, of[by], strict=True)) for choice, of in own.groupby("method")}
                for own in (own[own.run.isin(subset)] for own in months)
            ]
            for index, own in enumerate(months):
                known, next_month = index + (by == "held_out"), 100 * own.groupby("method").next_month.mean()
                choice = rule(asked[:known]) if known else VANILLA
                regret, gain = next_month.max() - next_month[choice], next_month[choice] - next_month[VANILLA]
                rows.append(
                    {"seed": seed, "month": own.month.iloc[0], "choice": choice, "regret": regret, "gain": gain}
                )
    return pd.DataFrame(rows)


def line(name: str, runs: int, found: pd.DataFrame) -> list[str]:
    """Return a line of the table: hits, regret, the gain with its interval over the years, how often each choice."""
    decisions, of_years = found.groupby(["seed", "month"]).ngroups, found.groupby("seed").gain.mean().to_dict()
    chosen = found.choice.value_counts(normalize=True) * decisions
    return [
        name,
        str(runs),
        f"{(found.regret.round(6) <= HIT).mean() * decisions:.3g} of {decisions}",
        f"{found.regret.mean():.1f}",
        difference_cell(of_years, dict.fromkeys(of_years, 0.0), digits=1),
        *(f"{chosen.get(choice, 0):.0f}" for choice in CHOICES),
    ]


def table(runs: pd.DataFrame, counts: Sequence[int]) -> str:
    """Return the hits and regrets of all rules, of those that ask with so many runs of each choice."""
    lines = [
        line(f"{name}, {by.replace('_', ' ')}", count, judged(runs, rule, by, count))
        for by in ("held_out", "next_month")
        for name, rule in ASKED.items()
        for count in counts
    ]
    lines += [line(f"always {choice}", 0, judged(runs, always(choice))) for choice in CHOICES]
    return markdown(["choose", "runs", "hits", "regret, points", "above vanilla (95 %)", *CHOICES], lines)


def more(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the decisions."""
    parser.add_argument("--runs", type=int, default=3, help="networks trained for each choice")
    parser.add_argument("--months", type=int, default=12, help="the first has no decision")


def main() -> None:
    """Run the study."""
    options, start = arguments(__doc__, "months", more), time.perf_counter()
    ask_each_month(options.seed_range, options.months, options.runs, options.folder, options.jobs)
    runs = runs_of(options.folder).query("month < @options.months")
    runs.to_csv(options.folder / "runs.csv", index=False)
    events_of(options.folder).to_csv(options.folder / "events.csv", index=False)
    print(table(runs, range(2, options.runs + 1)))
    print(f"\nthis command took {(time.perf_counter() - start) / 60:.1f} minutes")


if __name__ == "__main__":
    main()
