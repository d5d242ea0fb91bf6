"""The paper's ablation figures of a recipe: numbers of FIRE's steps (5 and 6), or coefficients of its polynomial (7).

python -m studies.ablation_figures vision/warm_start/fashion_mnist_small_resnet --seeds 3   # ablation.png
python -m studies.ablation_figures RECIPE --what coefficients   # the table and figure of compare
"""

import argparse
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import yaml
from matplotlib.axes import Axes

from lightning_fire.experiments.branching import with_shared_starts
from lightning_fire.experiments.chunks import Metric
from lightning_fire.experiments.compare import add_common_arguments, common, engine_for, train_and_read, with_monitor
from lightning_fire.experiments.figures import save
from lightning_fire.experiments.report import MINUS, Column, ComparisonReport
from lightning_fire.experiments.runs import Run, lock_folder, merged, plan, reference_of
from lightning_fire.experiments.tables import deliver, figures
from lightning_fire.printable import printable

_METHODS = {
    "steps": ["vanilla", "full_reset", "shrink_and_perturb", "dash", "fire"],
    "coefficients": ["vanilla", "fire"],
}
_STEPS, _COEFFICIENTS = [1, 2, 3, 5, 10, 20], ["cubic", "quintic", "muon"]
_DEFAULTS = {"steps": 10, "coefficients": "cubic"}
_NOTE = (
    "mean ± standard deviation (n - 1) over the seeds; – : not measured\n"
    "λ max: largest eigenvalue of the Hessian of the loss on the first samples of new data\n"
    "DfI: normalized deviation from isometry; DfI (eq. 2): the paper's ‖WᵀW − I‖², which also counts the scale"
)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m studies.ablation_figures",
        allow_abbrev=False,
        description="Draw the paper's ablation figures of a recipe. By the number of FIRE's steps (figures 5 and 6):"
        " final accuracy; curvature of the loss on the new data (largest eigenvalue of its Hessian), deviation from"
        " isometry and squared Frobenius error right after the event, by method; and the last two along the steps. By"
        " the coefficients of its polynomial (figure 7): what compare draws. Trains what has not been trained before.",
    )
    parser.add_argument(
        "--what", choices=list(_METHODS), default="steps", help="argument of FIRE that is varied (default: steps)"
    )
    parser.add_argument(
        "--methods",
        nargs="+",
        help="methods to set side by side; vanilla is the recipe without one, fire must be among them (default:"
        f" {' '.join(_METHODS['steps'])}; with coefficients {' '.join(_METHODS['coefficients'])})",
    )
    parser.add_argument(
        "--steps", nargs="+", type=_steps, help="numbers of Newton–Schulz steps, or exact (default: 1 2 3 5 10 20)"
    )
    add_common_arguments(parser, output="runs/<recipe>_ablation")
    return parser


def main(args: Sequence[str] | None = None) -> pd.DataFrame:
    """Run the command, and return the numbers of each run by method; of variants of FIRE as `fire,steps=N`."""
    options = parser().parse_args(args)
    what = options.what
    options.methods = options.methods or _METHODS[what]
    try:
        if what != "steps" and options.steps:
            raise ValueError(f"--steps is for --what steps, not {what}")
        recipe, output, seeds, extra = common(options, "_ablation")
        if "fire" not in options.methods:
            raise ValueError(f"--methods must have fire among them, got {' '.join(options.methods)}")
        runs = with_monitor(plan(recipe, options.methods, seeds, output, extra))
        values = dict.fromkeys((options.steps or _STEPS) if what == "steps" else _COEFFICIENTS)
        variants = {value: _variant(runs, what, value, output) for value in values}
        engine = engine_for(recipe, options, output)
    except (ImportError, OSError, ValueError, yaml.YAMLError) as error:
        parser().error(printable(str(error)))
    new = [run for of_steps in variants.values() for run in of_steps if run not in runs]
    every = with_shared_starts([*runs, *new])
    with lock_folder(output), closing(engine):
        report, failed = train_and_read(every, engine, reference_of(None, options.methods), options)
    if failed or report is None:
        raise SystemExit(f"{len(failed)} of {len(every)} runs failed")
    if what != "steps":
        report.publish(output, recipe.title)
        return report.numbers
    by_method = {method: method for method in options.methods}
    by_steps = {str(steps): of_steps[0].method for steps, of_steps in variants.items()}
    publish(report, by_method, by_steps, output, recipe.title)
    return report.numbers


def _steps(word: str) -> int | str:
    if word != "exact" and not (word.isdigit() and int(word) > 0):
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, or exact; got {word}")
    return word if word == "exact" else int(word)


def _variant(runs: Sequence[Run], argument: str, value: int | str, output: Path) -> list[Run]:
    """Return the runs of FIRE with another value of an argument; its own where the recipe has this value."""
    own = [run for run in runs if run.method == "fire"]
    overlay = own[0].configs[-1]
    method = overlay.get("method")
    if not isinstance(method, Mapping) or not str(method.get("class_path")).endswith(("FIRE", "FIRECallback")):
        raise ValueError(f"the method fire is not one FIRE: {method}")
    if (method.get("init_args") or {}).get(argument, _DEFAULTS[argument]) == value:
        return own
    label = f"fire,{argument}={value}"
    layer = merged(overlay, {"method": {"init_args": {argument: value}}})
    return [
        replace(run, method=label, folder=output / label / run.folder.name, configs=(*run.configs[:-1], layer))
        for run in own
    ]


def publish(
    report: ComparisonReport, by_method: Mapping[str, str], by_steps: Mapping[str, str], output: Path, title: str
) -> None:
    """Write everything and print the tables: `by_method` and `by_steps` are their rows, and the methods they show."""
    tables = [table(report, head, rows) for head, rows in (("method", by_method), ("steps", by_steps))]
    results = partial(report.numbers.droplevel("start").to_csv, float_format="%.6g")
    files = {"results.csv": results, **figures("ablation", partial(draw, report, by_method, by_steps, title=title))}
    metric = metric_of(report)
    note = f"{metric.name}: {metric.origin}; {_NOTE}\n{MINUS}; steps: of FIRE"
    deliver(output, tables, files, note, name="ablation")


def metric_of(report: ComparisonReport) -> Metric:
    """Return the metric that a report compares."""
    return getattr(report, "metric", Metric())


def table(report: ComparisonReport, head: str, rows: Mapping[str, str]) -> list[list[str]]:
    """Return the cells of a table of an ablation, the first row the header."""
    columns = [
        Column(f"final {metric_of(report).name}", "final"),
        Column(f"minus {report.reference} (95 %)", "final", "minus"),
        Column("λ max before", "lambda_max_before"),
        Column("λ max after", "lambda_max_after"),
        Column("DfI after", "dfi_after"),
        Column("DfI (eq. 2) after", "dfi_raw_after", digits=2),
        Column("SFE/‖W‖²", "sfe"),
    ]
    cells = [[name, *(report.cell(column, "", method) for column in columns)] for name, method in rows.items()]
    return [[head, *(column.title for column in columns)], *cells]


def draw(
    report: ComparisonReport,
    by_method: Mapping[str, str],
    by_steps: Mapping[str, str],
    path: Path,
    title: str,
    form: str = "png",
) -> None:
    """Draw the figure: mean and standard deviation (n - 1) over the seeds."""
    means = report.numbers.groupby("method").mean()
    spreads = report.numbers.groupby("method").std().fillna(0.0)
    figure, axes = plt.subplot_mosaic("aaabbb;ccddee", figsize=(13, 7), layout="constrained")
    figure.suptitle(title, parse_math=False)
    accuracy, along, *bars = axes.values()

    def curve(axis: Axes, measure: str, color: str, label: str | None = None) -> None:
        values, errors = (frame.loc[list(by_steps.values()), measure] for frame in (means, spreads))
        axis.errorbar(list(by_steps), values, errors, color=color, label=label, marker="o", capsize=3)

    curve(accuracy, "final", "C0")
    if "vanilla" in by_method:
        level = means.loc["vanilla", "final"]
        accuracy.axhline(level, color="black", linestyle="--", linewidth=1, label="vanilla")
        accuracy.legend()
    accuracy.set_ylabel(f"final {metric_of(report).name}")
    curve(along, "dfi_after", "C0", "normalized DfI")
    curve(along, "sfe", "C1", "SFE / ‖W‖²")
    along.set_yscale("log")
    along.set_ylabel("right after the event")
    along.legend()
    for axis in (accuracy, along):
        axis.set_xlabel("Newton–Schulz steps of FIRE")
        axis.grid(alpha=0.25)
    names = {"lambda_max_after": "λ max of the Hessian, new data", "dfi_after": "normalized DfI", "sfe": "SFE / ‖W‖²"}
    for axis, (measure, name) in zip(bars, names.items(), strict=True):
        there = means.loc[list(by_method), measure].dropna()
        colors = ["C0" if method == "fire" else "0.7" for method in there.index]
        axis.bar(list(there.index), there, yerr=spreads.loc[there.index, measure], color=colors, capsize=3)
        axis.set_xticks(range(len(there)), list(there.index), rotation=30, ha="right", parse_math=False)
        axis.set_ylabel(name)
        axis.grid(axis="y", alpha=0.25)
    negative = (report.numbers["lambda_max_after"] <= 0).any()
    bars[0].set_yscale("symlog" if negative else "log")
    save(figure, path, form)


if __name__ == "__main__":
    main()
