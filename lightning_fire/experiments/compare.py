"""`lightning-fire compare`."""

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from lightning_fire.experiments import report, return_report
from lightning_fire.experiments.history import read_history
from lightning_fire.experiments.phases import compare_phases
from lightning_fire.experiments.publish import publish
from lightning_fire.experiments.return_history import has_returns, read_returns
from lightning_fire.experiments.runs import Run, default_jobs, merged, plan
from lightning_fire.experiments.shared_start import with_shared_starts
from lightning_fire.experiments.starts import chosen_starts, first_phases
from lightning_fire.experiments.train import train
from lightning_fire.recipe.recipe import find_recipe
from lightning_fire.recipe.strict_yaml import require_unambiguous

# what the table needs, where a recipe has none: it measures the weights, at the end of each epoch
_MONITOR = {"class_path": "lightning_fire.callbacks.PlasticityMonitor", "init_args": {"data_every_n_steps": None}}


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="lightning-fire compare",
        allow_abbrev=False,
        description="Run a recipe with several methods and seeds side by side, then print a table (mean ± standard"
        " deviation over the seeds, difference to a reference), and write it as CSV, as a picture and as a page."
        " Finished runs are not run again; a run that fails is reported and does not stop the others.",
    )
    parser.add_argument(
        "--methods",
        nargs="+",
        default=["vanilla", "full_reset", "fire"],
        help="of the recipe; vanilla is the recipe without one",
    )
    add_common_arguments(parser)
    parser.add_argument(
        "--reference",
        help="method that the others are compared with, seed by seed (default: vanilla, or else the first)",
    )
    parser.add_argument(
        "--starts",
        nargs="+",
        help="of a recipe with `starts`: go on only from these of its checkpoints of phase 1 (default: all)",
    )
    parser.add_argument(
        "--no-shared-start",
        action="store_true",
        help="train each run on its first chunk of data by itself, also where methods only act on later ones",
    )
    parser.add_argument(
        "--keep-starts",
        action="store_true",
        help="keep the checkpoints (and replay buffers) up to the first event, so that methods that are added later go"
        " on from the same ones",
    )
    parser.add_argument(
        "--list",
        action="store_true",
        help="train nothing, print a command for each run, for a scheduler such as sbatch --array or for GNU parallel;"
        " when they are done, the command without --list prints the table. Each trains its first chunk by itself",
    )
    parser.add_argument("--no-report", action="store_true", help="train, but print and write no results")
    return parser


def add_common_arguments(parser: argparse.ArgumentParser, output: str = "runs/<recipe>") -> None:
    """Add what all commands over a recipe have."""
    parser.add_argument("recipe", help="YAML file with `methods`, or the short name of a shipped one, as quick_start")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds (default: 3)")
    parser.add_argument("--first-seed", type=int, default=0, help="the first of them; the others follow (default: 0)")
    parser.add_argument("--output", type=Path, help=f"folder for logs and results (default: {output})")
    parser.add_argument(
        "--jobs", type=int, default=default_jobs(), help="processes (default: one for each GPU, or else for each core)"
    )
    parser.add_argument(
        "--set",
        nargs="*",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="override recipe keys in every run; keys under intervention only where every method has them",
    )


def require_counts(options: argparse.Namespace) -> None:
    """Refuse numbers that are no counts."""
    for name in ("seeds", "jobs", "trials"):
        value = getattr(options, name, None)
        if value is not None and value < 1:
            raise ValueError(f"--{name} must be at least 1, got {value}")


def main(args: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the command, and return for each method the numbers of each run, see `report.COLUMNS`.

    Of a recipe with `starts`, of each start; of reinforcement learning see `return_report.numbers`.
    """
    options = parser().parse_args(args)
    try:
        recipe = find_recipe(options.recipe)
        output = options.output or Path("runs") / recipe.name
        require_counts(options)
        reference = report.reference_of(options.reference, options.methods)
        seeds = range(options.first_seed, options.first_seed + options.seeds)
        runs = plan(recipe, options.methods, seeds, output)
        extra = nested(options.set)
        starts = chosen_starts(recipe.starts, options.starts)
        if starts and (options.list or options.no_shared_start):
            raise ValueError(f"{recipe.path} has `starts`: --list and --no-shared-start are not for it")
        before = first_phases(recipe, seeds, output, extra) if starts else []
    except (FileNotFoundError, ValueError, yaml.YAMLError) as error:
        parser().error(str(error))
    if starts:
        publishes = not options.no_report
        return compare_phases(before, runs, reference, recipe, starts, output, options.jobs, extra, publishes)
    if options.list:
        print("\n".join(_command_of(run, options) for run in runs))
        return {}
    with_returns = has_returns(runs, extra)
    if not with_returns and not any("PlasticityMonitor" in text for text in runs[0].configs):
        extra = merged(extra, {"trainer": {"callbacks+": [_MONITOR]}})
    if not options.no_shared_start:
        runs = with_shared_starts(runs, extra, options.keep_starts)
    histories, failed = train(runs, options.jobs, extra, read_returns if with_returns else read_history)
    if not histories:
        raise SystemExit("no run finished")
    histories = {method: histories[method] for method in options.methods if method in histories}
    if not options.no_report:
        (return_report.publish if with_returns else publish)(histories, reference, recipe, output)
    if failed:
        raise SystemExit(f"{len(failed)} of {len(runs)} runs failed")
    numbers = return_report.all_numbers(histories) if with_returns else report.all_numbers(histories, reference)
    return {method: list(by_seed.values()) for method, by_seed in numbers.items()}


def _command_of(run: Run, options: argparse.Namespace) -> str:
    words = ["lightning-fire", "compare", str(options.recipe), "--methods", run.method, "--seeds", "1"]
    words += ["--first-seed", str(run.seed), "--output", str(run.folder.parent.parent), "--jobs", "1", "--no-report"]
    return shlex.join([*words, *(["--set", *options.set] if options.set else [])])


def nested(assignments: Sequence[str]) -> dict:
    """Turn `["trainer.max_epochs=3"]` into `{"trainer": {"max_epochs": 3}}`."""
    result: dict = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals:
            raise ValueError(f"--set takes KEY=VALUE, got {assignment!r}")
        *parents, last = key.split(".")
        place = result
        for parent in parents:
            place = place.setdefault(parent, {})
            if not isinstance(place, dict):
                raise ValueError(f"--set gives {parent!r} a value and, in {assignment!r}, keys below it")
        if isinstance(place.get(last), dict):
            raise ValueError(f"--set gives {last!r} keys below it and, in {assignment!r}, a value")
        if last in place:
            raise ValueError(f"--set gives {key} twice")
        require_unambiguous(value)
        place[last] = yaml.safe_load(value)
    return result
