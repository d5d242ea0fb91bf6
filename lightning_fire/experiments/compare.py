"""`lightning-fire compare`: methods and seeds of a recipe, side by side."""

import argparse
import importlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from lightning_fire.experiments.branching import with_first_phases, with_shared_starts
from lightning_fire.experiments.direction import mode_of
from lightning_fire.experiments.from_checkpoint import HOLD_OUT, about_optimizers, from_checkpoint, with_scratch
from lightning_fire.experiments.runs import Run, epochs_and_steps_of, lock_folder, merged, plan, reference_of
from lightning_fire.experiments.source_of import importing_from_here
from lightning_fire.printable import printable, without_nan
from lightning_fire.recipe.recipe import VANILLA, Recipe, extended, find_recipe
from lightning_fire.recipe.strict_yaml import require_unambiguous

if TYPE_CHECKING:
    import pandas as pd

    from lightning_fire.experiments.engines import Engine
    from lightning_fire.experiments.report import ComparisonReport

# added to a recipe without one: the table needs metrics of the weights at the end of each epoch
_MONITOR = {"class_path": "lightning_fire.callbacks.PlasticityMonitor", "init_args": {"data_every_n_steps": None}}


def parser() -> argparse.ArgumentParser:
    """Return the argument parser of the command."""
    parser = argparse.ArgumentParser(
        prog="lightning-fire compare",
        usage="lightning-fire compare RECIPE [--methods NAME ...] [--seeds N] [--metric KEY] [--mode max|min] [...]",
        allow_abbrev=False,
        description="Run a recipe with several methods and seeds side by side, then print a table (mean ± standard"
        " deviation over the seeds, difference to a reference), and write it as CSV and figure."
        " Finished runs are not run again, interrupted ones continue from their last checkpoint; a run that fails is"
        " reported and does not stop the others.",
    )
    parser.add_argument(
        "--methods",
        nargs="+",
        default=[VANILLA, "full_reset", "fire"],
        help="methods of the recipe; vanilla is the recipe without a method (default: vanilla full_reset fire; with"
        " --from: vanilla scratch fire)",
    )
    parser.add_argument(
        "--from",
        dest="checkpoint",
        type=Path,
        metavar="CKPT",
        help="start all methods from the weights of this checkpoint, and from its optimizer state if it fits; the data"
        " of the recipe counts as new, so that methods act at the start of training. Adds scratch: the same training"
        " with a new network",
    )
    add_common_arguments(parser)
    parser.add_argument(
        "--reference",
        help="method that the others are compared with, seed by seed (default: vanilla, otherwise the first)",
    )
    parser.add_argument(
        "--starts",
        nargs="+",
        help="for a recipe with `starts`: checkpoints of phase 1 to continue from (default: all)",
    )
    parser.add_argument(
        "--no-shared-start",
        action="store_true",
        help="train each run separately on its first chunk of data, even if methods act only on later ones",
    )
    parser.add_argument(
        "--keep-starts",
        action="store_true",
        help="keep the checkpoints (and replay buffers) before the first event, so that methods added later start from"
        " them",
    )
    parser.add_argument(
        "--no-report",
        action="store_true",
        help="train without printing and writing results, for one job (one method and seed) of any scheduler;"
        " afterwards the command with all methods and seeds prints the table",
    )
    parser.add_argument(
        "--worth",
        type=float,
        metavar="DIFFERENCE",
        help="smallest difference of the metric that matters to you; the decision says how many more seeds would"
        " decide it (default: a tenth of the best gain over continuing, or half the standard deviation between seeds)",
    )
    paper = parser.add_argument_group("reporting finished runs, for a paper")
    paper.add_argument(
        "--no-train", action="store_true", help="report the finished runs of --methods and --seeds without training"
    )
    paper.add_argument(
        "--format", choices=["text", "latex", "csv", "markdown"], default="text", help="format of the printed table"
    )
    paper.add_argument(
        "--labels", nargs="*", default=[], metavar="METHOD=LABEL", help="names of methods in the table and figures"
    )
    paper.add_argument("--title", help="title of the figures (default: the name of the recipe)")
    parser.add_argument(
        "--json",
        action="store_true",
        help="also print the numbers of all runs, and the decision of each start, as JSON lines",
    )
    return parser


def add_common_arguments(parser: argparse.ArgumentParser, output: str = "runs/<recipe>") -> None:
    """Add the arguments shared by all commands that train a recipe."""
    parser.add_argument("recipe", help="YAML file with `methods`, or the short name of a shipped one")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds (default: 3)")
    parser.add_argument("--first-seed", type=int, default=0, help="first seed; the others follow (default: 0)")
    parser.add_argument("--output", type=Path, help=f"folder for logs and results (default: {output})")
    pairs: dict[str, Any] = {"nargs": "*", "action": "extend", "default": [], "metavar": "KEY=VALUE"}
    parser.add_argument(
        "--set", help="override recipe keys in every run; keys under `method` only if every method has them", **pairs
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="YAML file with keys that override the recipe's in every run (--set overrides both): vision/gpu, or your"
        " own; its `methods:` are added to those of the recipe",
    )
    parser.add_argument(
        "--metric", metavar="KEY", help="logged key that is compared, such as train/accuracy (default: val/accuracy)"
    )
    parser.add_argument(
        "--mode",
        choices=["max", "min"],
        help="max: larger --metric is better; min: smaller is better (default: max; required for the name of a loss or"
        " an error)",
    )
    add_engine_arguments(parser)


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments for the place of trainings and the number of simultaneous ones."""
    pairs: dict[str, Any] = {"nargs": "*", "action": "extend", "default": [], "metavar": "KEY=VALUE"}
    where = parser.add_argument_group("where it runs")
    where.add_argument(
        "--engine",
        choices=["local", "slurm", "ray"],
        default="local",
        help="this machine, jobs of Slurm ('lightning-fire[slurm]'), or tasks of Ray ('lightning-fire[ray]')",
    )
    where.add_argument(
        "--engine-set",
        **pairs,
        help="for Slurm: options of sbatch, such as partition=gpu (cluster=local: a trial without Slurm); for Ray:"
        " arguments of ray.init, such as address=auto",
    )
    where.add_argument(
        "--jobs",
        type=int,
        help="simultaneous runs (default: one per GPU, or per core without GPUs; elsewhere 1000)",
    )
    where.add_argument("--cpus", type=int, help="cores per run (default: an equal part of this machine's; elsewhere 1)")
    where.add_argument("--gpus", type=int, help="GPUs per run (default: 1 if this machine has any; elsewhere 0)")
    where.add_argument(
        "--minutes", type=int, help="time limit of a Slurm job; the run then continues in another job (default: a day)"
    )
    where.add_argument("--max-minutes", type=float, help="stop after this time; the same command continues later")


def common(options: argparse.Namespace, ending: str = "") -> tuple[Recipe, Path, range, dict[str, Any]]:
    """Return the common inputs of all commands over a recipe: recipe, folder for results, seeds, and overrides."""
    for name in ("seeds", "jobs", "trials"):
        value = getattr(options, name, None)
        if value is not None and value < 1:
            raise ValueError(f"--{name} must be at least 1, got {value}")
    recipe = find_recipe(options.recipe)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    recipe, extra = extended(recipe, options.config) if options.config else (recipe, {})
    extra = merged(extra, nested(options.set))
    output = options.output or Path("runs", f"{recipe.name}{ending}")
    if output.is_file():
        raise ValueError(f"--output {output} is a file: name a folder")
    return recipe, output, seeds, extra


def engine_for(recipe: Recipe, options: argparse.Namespace, output: Path) -> "Engine":
    """Return the engine named in the options, with the resources of the options or else of the recipe."""
    from lightning_fire.experiments.engines import Resources, engine_of

    given = {name: getattr(options, name) for name in ("cpus", "gpus", "minutes")}
    resources = {**recipe.resources, **{name: value for name, value in given.items() if value is not None}}
    try:
        of_run = Resources(**resources)
    except TypeError:
        raise ValueError(f"`resources` in {recipe.path} may have cpus, gpus and minutes, got {resources}") from None
    return engine_of(options.engine, output, options.jobs, of_run, nested(options.engine_set, "--engine-set"))


def main(args: Sequence[str] | None = None) -> "pd.DataFrame":
    """Run the command; return the numbers of the runs, one row per start, method and seed.

    The methods `measures()` of `ChunkedRun`, `ReturnReport` and `PhaseReport` list the columns.
    """
    options = parser().parse_args(args)
    try:
        recipe, output, seeds, extra = common(options)
        if options.checkpoint:
            named = ["fire"] if options.methods == parser().get_default("methods") else options.methods
            recipe, options.methods = with_scratch(recipe, named, alone=options.no_report)
        reference = reference_of(options.reference, options.methods)
        if options.worth is not None and not 0 < options.worth < math.inf:
            raise ValueError(f"--worth must be a positive number, got {options.worth}")
        labels = dict(word.partition("=")[::2] for word in options.labels)
        if wrong := [name for name, label in labels.items() if name not in options.methods or not label]:
            raise ValueError(f"--labels takes METHOD=LABEL of a method among --methods, got {', '.join(wrong)}")
        runs = with_first_phases(plan(recipe, options.methods, seeds, output, extra), recipe, options.starts)
        if recipe.starts and options.no_shared_start:
            raise ValueError(f"{recipe.path} has `starts`: --no-shared-start cannot be used with it")
        runs = from_checkpoint(runs, options.checkpoint) if options.checkpoint else runs
        engine = engine_for(recipe, options, output)
        runs = with_monitor(runs)
        metric_of(runs[0], options)  # raises an error before training
    except (ImportError, OSError, ValueError, yaml.YAMLError) as error:
        parser().error(printable(str(error)))
    if options.checkpoint:
        print(HOLD_OUT.format(options.checkpoint))
    elif not recipe.starts and not options.no_shared_start:
        runs = with_shared_starts(runs, options.keep_starts)
    with lock_folder(output, alone=not options.no_report), closing(engine):
        if options.no_train:
            finished = [run for run in runs if run.is_finished()]
            if other := [run.name for run in runs if run.is_outdated()]:
                left_out = ", ".join(other)
                print(f"trained with other settings or code, left out: {left_out}; repeat their --set and --config")
            if never := [run.name for run in runs if run not in finished and run.name not in other]:
                print(f"not finished, left out: {', '.join(never)}")
            if not finished:
                raise SystemExit("no run finished")
            runs = finished
        report, failed = train_and_read(runs, engine, reference, options)
        if report is None:
            raise SystemExit("no run finished")
        decisions = report.decisions(options.worth, seeds_of(failed))
        if not options.no_report:
            told = [f"{f'{start}: ' if start else ''}{decision.text}" for start, decision in decisions.items()]
            report.labels = labels
            report.publish(output, options.title or recipe.title, "\n\n".join(told), options.format)
            if options.checkpoint:
                print(about_optimizers(report.curves))
        if options.json:
            for row in report.numbers.reset_index().to_dict("records"):
                print(json.dumps(without_nan(row)))
            for start, decision in decisions.items():
                print(json.dumps(without_nan({"start": start, "decision": asdict(decision)})))
    if failed:
        raise SystemExit(f"{len(failed)} of {len(runs)} runs failed")
    return report.numbers


def seeds_of(runs: Iterable[Run]) -> dict[str, dict[str, list[int]]]:
    """Return the seeds of some runs, by start and method."""
    seeds: dict[str, dict[str, list[int]]] = {}
    for run in runs:
        seeds.setdefault(run.branch, {}).setdefault(run.method, []).append(run.seed)
    return seeds


def train_and_read(
    runs: Sequence[Run], engine: "Engine", reference: str, options: argparse.Namespace
) -> tuple["ComparisonReport | None", list[Run]]:
    """Train unfinished runs; return a report of the finished ones (None if there are none), and the failed runs."""
    from lightning_fire.experiments import phases, returns
    from lightning_fire.experiments.chunks import Metric
    from lightning_fire.experiments.functions import FunctionReport
    from lightning_fire.experiments.logs import Curves, read_curves
    from lightning_fire.experiments.runner import NOT_BEGUN, train
    from lightning_fire.experiments.streams import report_of_chunks

    declared = declared_report(runs[0])
    metric = Metric(*metric_of(runs[0], options))
    known = {"phases": phases.NEEDS, "return": returns.NEEDS, "function": {metric.key: "the function of the recipe"}}
    needs = known.get(declared, metric.needs)
    if declared in ("accuracy", "loss", "function"):
        runs = [
            replace(run, needs=metric.key, start=run.start and replace(run.start, needs=metric.key)) for run in runs
        ]
    failed, curves = train(runs, engine, options.max_minutes), {}
    branches, methods = [run.branch for run in runs], [run.method for run in runs]
    done = [run for run in runs if run not in failed]
    for run in sorted(done, key=lambda run: (branches.index(run.branch), methods.index(run.method))):
        found = read_curves(run.folder)
        if lacking := {key: who for key, who in needs.items() if not {key, f"{key}_seen"} & set(found)}:
            logged_by = "; ".join(f"{key}, as {who} does" for key, who in sorted(lacking.items()))
            failed[run] = f"{run.folder} has not logged {logged_by}"
        else:
            curves[run.branch, run.method, run.seed] = found
    if skipped := sum(reason == NOT_BEGUN for reason in failed.values()):
        print(f"\n{skipped} runs were {NOT_BEGUN}:")
    for run, reason in failed.items():
        if reason == NOT_BEGUN:
            continue
        log = run.log if run.log.is_file() or run.start is None else run.start.log
        print(printable(f"\n{run.name} FAILED: {reason}  (see {log})"))
    if not curves:
        return None, list(failed)
    first: dict[int, Curves] = {}
    taken: dict[str, dict[int, int]] = {}
    for run in runs:
        if declared == "phases" and run not in failed and run.start and run.checkpoint:
            first[run.seed] = read_curves(run.start.folder)
            taken.setdefault(run.branch, {})[run.seed] = epochs_and_steps_of(run.checkpoint)[1]
    report: ComparisonReport
    if declared == "phases":
        report = phases.PhaseReport(curves, reference, first, taken)
    elif declared == "return":
        report = returns.ReturnReport(curves, reference)
    elif declared == "function":
        report = FunctionReport(curves, reference, metric)
    else:
        report = report_of_chunks(curves, reference, metric)
    report.mode = metric.mode
    return report, list(failed)


def with_monitor(runs: Sequence[Run]) -> list[Run]:
    """Return the runs with the callback that the table needs; raise a ValueError if only some have it already."""

    def has_monitor(config: Any) -> bool:
        if isinstance(config, Mapping) and str(config.get("class_path")).rpartition(".")[2] == "PlasticityMonitor":
            return "name:" not in yaml.safe_dump(config)  # of `Log`
        inner = config.values() if isinstance(config, Mapping) else config if isinstance(config, list) else []
        return any(map(has_monitor, inner))

    without = [run.method for run in runs if not has_monitor(run.recipe())]
    if declared_report(runs[0]) in ("phases", "return", "function") or not without:
        return list(runs)
    if len(without) < len(runs):
        raise ValueError(
            f"{', '.join(dict.fromkeys(without))} lacks the PlasticityMonitor that other methods have: name it under"
            " trainer.callbacks of the recipe, or nowhere"
        )
    return [replace(run, extra=merged(run.extra, {"trainer": {"callbacks+": [_MONITOR]}})) for run in runs]


def metric_of(run: Run, options: argparse.Namespace) -> tuple[str, str]:
    """Return the key of the compared metric, and whether its `max` or `min` is best.

    Raises:
        ValueError: If a run trains by a function, and neither `--metric` nor its recipe names the metric; or if
            `--mode` is required, see `mode_of`.
    """
    if options.metric is not None:
        return options.metric, mode_of(options.metric, options.mode, "--mode {}")
    declared = declared_report(run)
    if declared != "function":
        return ("val/loss", "min") if declared == "loss" else ("val/accuracy", options.mode or "max")
    train = run.recipe()["train"]
    if not isinstance(train, Mapping) or not train.get("metric"):
        raise ValueError("name the logged metric to compare, with --metric or as train.metric")
    key, mode = str(train["metric"]), options.mode or train.get("mode")
    return key, mode_of(key, mode, "--mode {0} or train.mode: {0}")


def declared_report(run: Run) -> str:
    """Return the name of the report that the data of a run declares, see `contracts.HasReport`; check that it exists.

    `"function"` if the run trains by a function, `"phases"` if it continues from a phase 1.
    """
    if run.branch:
        return "phases"
    if "train" in (recipe := run.recipe()):
        return "function"
    data = recipe.get("data")
    path = data.get("class_path") if isinstance(data, Mapping) else data
    if not isinstance(path, str):
        return "accuracy"  # the run itself reports it
    from lightning_fire.recipe.function import imported

    with importing_from_here():
        ours = importlib.import_module("lightning_fire.data")
        kind = imported("data", path) if "." in path else getattr(ours, path, None)
    report = getattr(kind, "report", "accuracy")
    if report not in ("accuracy", "loss", "return"):
        raise ValueError(
            f"{path}.report must be one of accuracy, loss, return, as an attribute of the class, got {report!r}"
        )
    return str(report)


def nested(assignments: Sequence[str], option: str = "--set") -> dict[str, Any]:
    """Turn `["trainer.max_epochs=3"]` into `{"trainer": {"max_epochs": 3}}`."""
    result: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals:
            raise ValueError(f"{option} takes KEY=VALUE, got {assignment!r}")
        *parents, last = key.split(".")
        place = result
        for parent in parents:
            place = place.setdefault(parent, {})
            if not isinstance(place, dict):
                raise ValueError(f"{option} gives {parent!r} a value and, in {assignment!r}, keys below it")
        if isinstance(place.get(last), dict):
            raise ValueError(f"{option} gives {last!r} keys below it and, in {assignment!r}, a value")
        if last in place:
            raise ValueError(f"{option} gives {key} twice")
        require_unambiguous(value)
        place[last] = yaml.safe_load(value)
    return result
