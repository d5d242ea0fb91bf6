"""`lightning-fire compare`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import yaml
from tqdm import tqdm

from lightning_fire.compare import report
from lightning_fire.compare.history import History, read_history
from lightning_fire.compare.progress import Progress
from lightning_fire.compare.runs import Run, default_jobs, execute, is_finished, is_outdated, plan
from lightning_fire.compare.shared_start import with_shared_starts

SUMMARY = "run a recipe with several methods and seeds; print a table, draw a picture"


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="lightning-fire compare",
        description="Run a recipe with several methods and seeds side by side, then print a table (mean ± standard"
        " deviation over the seeds), and write it as CSV and as a picture. Finished runs are not run again; a run that"
        " fails is reported and does not stop the others.",
    )
    parser.add_argument("recipe", type=Path, help="folder with base.yaml and one overlay <method>.yaml for each method")
    parser.add_argument(
        "--methods", nargs="+", default=["vanilla", "full_reset", "fire"], help="overlays; vanilla is the base alone"
    )
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds (default: 3)")
    parser.add_argument("--first-seed", type=int, default=0, help="the first of them; the others follow (default: 0)")
    parser.add_argument("--output", type=Path, help="folder for logs and results (default: runs/<name of the recipe>)")
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
    parser.add_argument(
        "--no-shared-start",
        action="store_true",
        help="train each run on its first chunk of data by itself, also where methods only act on later ones",
    )
    return parser


def main(args: Sequence[str] | None = None) -> dict[str, list[dict[str, float]]]:
    """Run the command.

    Args:
        args: The words after `lightning-fire compare`. Default: those of the process.

    Returns:
        For each method the numbers of each run, see `report.COLUMNS`.

    Raises:
        SystemExit: If an argument is wrong, or any run failed.
    """
    options = parser().parse_args(args)
    output = options.output or Path("runs") / options.recipe.resolve().name
    if options.seeds < 1 or options.jobs < 1:
        parser().error("--seeds and --jobs must be at least 1")
    try:
        seeds = range(options.first_seed, options.first_seed + options.seeds)
        runs = plan(options.recipe, options.methods, seeds, output)
        extra = _nested(options.set)
    except (FileNotFoundError, ValueError, yaml.YAMLError) as error:
        parser().error(str(error))
    if outdated := [run.name for run in runs if is_outdated(run, extra)]:
        print(f"trained before with other settings, training again: {', '.join(outdated)}")
    if not options.no_shared_start:
        runs = with_shared_starts(runs, extra)
    outcome = _execute_with_bar(runs, min(options.jobs, len(runs)), extra)
    failed = {run: reason for run, reason in outcome.items() if reason}
    histories: dict[str, dict[int, History]] = {}
    for run in runs:
        if run in failed:
            continue
        try:
            histories.setdefault(run.method, {})[run.seed] = read_history(run.folder)
        except ValueError as error:
            failed[run] = str(error)
    histories = {method: histories[method] for method in options.methods if method in histories}
    for run, reason in failed.items():
        log = run.log if run.log.is_file() or run.start is None else run.start.log
        print(f"\n{run.name} FAILED: {reason}  (see {log})")
    if not histories:
        raise SystemExit("no run finished")
    _publish(histories, options.recipe, output)
    if failed:
        raise SystemExit(f"{len(failed)} of {len(runs)} runs failed")
    return {method: [report.numbers(run) for run in by_seed.values()] for method, by_seed in histories.items()}


def _publish(histories: report.Histories, recipe: Path, output: Path) -> None:
    text = report.table(histories)
    print(f"\n{text}\n")
    (output / "table.txt").write_text(text + "\n")
    report.write_csv(histories, output / "results.csv")
    report.draw(histories, output / "comparison.png", title=_title(recipe))
    print(
        "accuracies: on the test set, mean ± standard deviation (n - 1) over the seeds;"
        " DfI: normalised deviation from isometry"
    )
    print(f"picture:     {output / 'comparison.png'}")
    print(f"every run:   {output / 'results.csv'}")
    print(f"TensorBoard: tensorboard --logdir {output}")


def _title(recipe: Path) -> str:
    parts = recipe.resolve().parts
    return " / ".join(parts[parts.index("recipes") + 1 :] if "recipes" in parts else parts[-1:]).replace("_", " ")


def _execute_with_bar(runs: Sequence[Run], jobs: int, extra: dict) -> dict[Run, str | None]:
    """Show one bar for all runs, in epochs; it names what each process is at."""
    number = sum(not is_finished(run, extra) for run in runs)
    seen: tuple[dict[Run, Progress], list[Run]] | None = None
    with tqdm(total=None, unit=" epochs", desc="starting", dynamic_ncols=True) as bar:

        def show(now: dict[Run, Progress], active: list[Run]) -> None:
            nonlocal seen
            if seen == (now, active) or not now:
                return
            seen = now, active
            bounded = all(p.epochs > 0 for p in now.values())
            bar.total = round(sum(p.epochs for p in now.values()) / len(now) * number) if bounded else None
            bar.n = sum(p.epoch for run, p in now.items() if run.checkpoint is None or run in active)
            running = [(run, now[run]) for run in active if run in now]
            bar.set_description(", ".join(f"{r.name} chunk {p.chunk}/{p.chunks}" for r, p in running) or "starting")

        return execute(runs, jobs, extra, show)


def _nested(assignments: Sequence[str]) -> dict:
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
        place[last] = yaml.safe_load(value)
    return result
