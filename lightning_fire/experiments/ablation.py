"""`lightning-fire ablation`: the paper's figure "Ablation study results" of a recipe."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import yaml
from matplotlib.axes import Axes

from lightning_fire.experiments import report
from lightning_fire.experiments.compare import add_common_arguments, nested, require_counts
from lightning_fire.experiments.deliver import deliver, title_of
from lightning_fire.experiments.runs import Run, merged, plan
from lightning_fire.experiments.shared_start import with_shared_starts
from lightning_fire.experiments.train import train
from lightning_fire.recipe.recipe import Recipe, find_recipe

_DEFAULT_STEPS = 10

Numbers = Mapping[str, Sequence[Mapping[str, float]]]  # by method, of each run


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="lightning-fire ablation",
        allow_abbrev=False,
        description="Draw the paper's ablation figure of a recipe: final accuracy by the number of FIRE's steps;"
        " curvature of the loss on the new data (largest eigenvalue of its Hessian), deviation from isometry and"
        " squared Frobenius error right after the event, by method; and the last two along the steps. Trains what has"
        " not been trained before.",
    )
    parser.add_argument(
        "--methods",
        nargs="+",
        default=["vanilla", "full_reset", "shrink_and_perturb", "dash", "fire"],
        help="methods to set side by side; vanilla is the recipe without one, fire must be among them",
    )
    parser.add_argument(
        "--steps", nargs="+", type=_steps, default=[1, 2, 3, 5, 10, 20], help="numbers of Newton–Schulz steps, or exact"
    )
    add_common_arguments(parser, output="runs/<recipe>_ablation")
    return parser


def main(args: Sequence[str] | None = None) -> dict[str, list[dict[str, float]]]:
    """Run the command, and return the numbers of each run by method, and by number of steps as `fire,steps=N`."""
    options = parser().parse_args(args)
    try:
        recipe = find_recipe(options.recipe)
        output = options.output or Path("runs", f"{recipe.name}_ablation")
        require_counts(options)
        if "fire" not in options.methods:
            raise ValueError(f"--methods must have fire among them, got {' '.join(options.methods)}")
        seeds = range(options.first_seed, options.first_seed + options.seeds)
        runs = plan(recipe, options.methods, seeds, output)
        extra = nested(options.set)
        variants = {steps: _variant(runs, steps, output) for steps in dict.fromkeys(options.steps)}
    except (OSError, ValueError, yaml.YAMLError) as error:
        parser().error(str(error))
    new = [run for of_steps in variants.values() for run in of_steps if run not in runs]
    every = with_shared_starts([*runs, *new], extra)
    histories, failed = train(every, options.jobs, extra)
    reference = report.reference_of(None, options.methods)
    numbers = {method: list(by_seed.values()) for method, by_seed in report.all_numbers(histories, reference).items()}
    by_steps = {str(steps): numbers.get(of_steps[0].method, []) for steps, of_steps in variants.items()}
    if failed:
        raise SystemExit(f"{len(failed)} of {len(every)} runs failed")
    by_method = {method: numbers[method] for method in options.methods}
    _publish(histories, reference, by_method, by_steps, recipe, output)
    return numbers


def _steps(word: str) -> int | str:
    if word != "exact" and not (word.isdigit() and int(word) > 0):
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, or exact; got {word}")
    return word if word == "exact" else int(word)


def _variant(runs: Sequence[Run], steps: int | str, output: Path) -> list[Run]:
    """Return the runs of FIRE with another number of steps; its own where the recipe has this number."""
    own = [run for run in runs if run.method == "fire"]
    overlay = yaml.safe_load(own[0].configs[-1])
    method = overlay.get("intervention") if isinstance(overlay, Mapping) else None
    if not isinstance(method, Mapping) or not str(method.get("class_path")).endswith("FIRECallback"):
        raise ValueError(f"the method fire is not one FIRECallback: {method}")
    if (method.get("init_args") or {}).get("steps", _DEFAULT_STEPS) == steps:
        return own
    label = f"fire,steps={steps}"
    layer = yaml.safe_dump(merged(overlay, {"intervention": {"init_args": {"steps": steps}}}))
    return [
        replace(run, method=label, folder=output / label / run.folder.name, configs=(*run.configs[:-1], layer))
        for run in own
    ]


def _publish(
    histories: report.Histories,
    reference: str,
    by_method: Numbers,
    by_steps: Numbers,
    recipe: Recipe,
    output: Path,
) -> None:
    tables = [table(rows, head, reference, by_method) for head, rows in (("method", by_method), ("steps", by_steps))]
    deliver(
        output,
        "\n\n".join(tables),
        {
            "results.csv": partial(report.write_csv, histories, reference),
            "ablation.png": partial(draw, by_method, by_steps, title=title_of(recipe)),
        },
        "λ max: largest eigenvalue of the Hessian of the loss on the first samples of new data\n"
        "mean ± standard deviation (n - 1) over the seeds; accuracy: on the test set; – : there is no such moment\n"
        f"{report.MINUS}; steps: of FIRE",
        name="ablation.txt",
    )


_MEASURES = {
    "final": "final accuracy",
    "lambda_max_before": "λ max before",
    "lambda_max_after": "λ max after",
    "dfi_after": "DfI after",
    "sfe": "SFE/‖W‖²",
}


def table(numbers: Numbers, head: str, reference: str, by_method: Numbers) -> str:
    """Format the measures of an ablation for a terminal."""
    final, *measures = _MEASURES.values()
    rows = [[head, final, f"minus {reference} (95 %)", *measures]]
    every = {name: dict(enumerate(runs)) for name, runs in {**by_method, **numbers}.items()}
    for name, runs in numbers.items():
        final, *measures = (report.with_spread([run[measure] for run in runs]) for measure in _MEASURES)
        rows.append([name, final, report.difference_cell(every, name, reference), *measures])
    return report.aligned(rows)


def draw(by_method: Numbers, by_steps: Numbers, path: Path, title: str) -> None:
    """Draw the figure: mean and standard deviation (n - 1) over the seeds."""
    figure, axes = plt.subplot_mosaic("aaabbb;ccddee", figsize=(13, 7), layout="constrained")
    figure.suptitle(title, parse_math=False)
    accuracy, along, *bars = axes.values()
    _curve(accuracy, by_steps, "final", "C0")
    if "vanilla" in by_method:
        (level,), _ = _mean_and_spread({"vanilla": by_method["vanilla"]}, "final")
        accuracy.axhline(level, color="black", linestyle="--", linewidth=1, label="vanilla")
        accuracy.legend()
    accuracy.set_ylabel("final accuracy")
    _curve(along, by_steps, "dfi_after", "C0", "normalised DfI")
    _curve(along, by_steps, "sfe", "C1", "SFE / ‖W‖²")
    along.set_yscale("log")
    along.set_ylabel("right after the event")
    along.legend()
    for axis in (accuracy, along):
        axis.set_xlabel("Newton–Schulz steps of FIRE")
    names = {"lambda_max_after": "λ max of the Hessian, new data", "dfi_after": "normalised DfI", "sfe": "SFE / ‖W‖²"}
    for axis, (measure, name) in zip(bars, names.items(), strict=True):
        there = {m: runs for m, runs in by_method.items() if not np.isnan([run[measure] for run in runs]).any()}
        _bars(axis, there, measure)
        axis.set_ylabel(name)
    negative = any(run["lambda_max_after"] <= 0 for runs in by_method.values() for run in runs)
    bars[0].set_yscale("symlog" if negative else "log")
    figure.savefig(path, dpi=140, format="png")
    plt.close(figure)


def _curve(axis: Axes, numbers: Numbers, measure: str, color: str, label: str | None = None) -> None:
    mean, spread = _mean_and_spread(numbers, measure)
    axis.errorbar(list(numbers), mean, spread, color=color, label=label, marker="o", capsize=3)
    axis.grid(alpha=0.25)


def _bars(axis: Axes, numbers: Numbers, measure: str) -> None:
    mean, spread = _mean_and_spread(numbers, measure)
    colors = ["C0" if method == "fire" else "0.7" for method in numbers]
    axis.bar(list(numbers), mean, yerr=spread, color=colors, capsize=3)
    axis.set_xticks(range(len(numbers)), list(numbers), rotation=30, ha="right", parse_math=False)
    axis.grid(axis="y", alpha=0.25)


def _mean_and_spread(numbers: Numbers, measure: str) -> tuple[list[float], list[float]]:
    columns: list[list[Any]] = [[run[measure] for run in runs] for runs in numbers.values()]
    return [float(np.mean(c)) for c in columns], [float(np.std(c, ddof=1)) if len(c) > 1 else 0.0 for c in columns]
