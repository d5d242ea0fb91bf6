"""Methods that reset single units, where units die: each tuned, ReDo by three scores, with and without BatchNorm.

python -m studies.units   # tables, results.csv and units.png in runs/units

Everything by `lightning-fire` itself: on each stream, for each network, `sweep` chooses the hyper-parameters of each
method on seeds 100 and 101, then `compare` runs the seeds asked for with what it chose.
"""

import time
from pathlib import Path

import pandas as pd

from lightning_fire.experiments import compare, sweep
from lightning_fire.recipe.recipe import SEARCH_SPACE, SHIPPED
from studies.runs import arguments, cell, draw_bars, finish, markdown

RECIPES = ("quick_start", "streams/permuted_inputs")
NORMALIZATIONS = ("none", "batch")
REFERENCES = ("vanilla", "full_reset", "fire_procrustes")
TUNED = ("redo", "redo_pre_activation", "redo_gradient", "continual_backprop", "snr")
SPACE = SHIPPED / SEARCH_SPACE


def run(recipe: str, normalization: str, folder: Path, seeds: range, jobs: int) -> pd.DataFrame:
    """Tune every method, compare them, and return a row for each run."""
    common = ["--jobs", str(jobs), "--set", f"model.init_args.net.init_args.normalization={normalization}"]
    best, chosen = recipe, {}
    for method in TUNED:
        output = folder / f"sweep_{method}"
        search = ["--method", method, "--space", str(SPACE), "--measure", "online_last", "--prune"]
        others = ["--seeds", "2", "--first-seed", "100", "--output", str(output)]
        setting = sweep.main([best, *search, *others, *common])
        chosen[method] = ", ".join(f"{name} {value:g}" for name, value in setting.items())
        best = str(output / "best.yaml")  # of the recipe before, with this method tuned
    many = ["--seeds", str(len(seeds)), "--first-seed", str(seeds.start), "--output", str(folder / "compare")]
    runs = compare.main([best, "--methods", *REFERENCES, *TUNED, "--reference", "full_reset", *many, *common])
    runs = runs.reset_index().assign(stream=recipe, normalization=normalization)
    return runs.assign(chosen=runs.method.map(chosen))


def table(runs: pd.DataFrame) -> str:
    """Return a table of the methods on one stream, for one network."""
    head = ["method", "chosen", "online, last", "minus `full_reset` (95 %)", "minus `redo` (95 %)", "dormant, last"]
    rows = []
    for method in (*REFERENCES, *TUNED):
        own = runs[runs.method == method]
        chosen = own.chosen.iloc[0] if method in TUNED else ""
        differences = [cell(runs, method, reference) for reference in ("full_reset", "redo")]
        rows.append([f"`{method}`", chosen, cell(runs, method), *differences, f"{own.dormant_last.mean():.2f}"])
    return markdown(head, rows)


def main() -> None:
    """Run the study."""
    options, start = arguments(__doc__, "units"), time.perf_counter()
    panels = {}
    for recipe in RECIPES:
        for normalization in NORMALIZATIONS:
            stream = Path(recipe).stem.replace("quick_start", "random_labels")
            folder = options.folder / f"{stream}_{normalization}"
            title = f"{stream.replace('_', ' ')}, {normalization.replace('none', 'no')} normalization"
            panels[title] = run(recipe, normalization, folder, options.seed_range, options.jobs)
    for title, runs in panels.items():
        print(f"\n### {title.capitalize()}\n\n{table(runs)}")
    everything = pd.concat(panels.values(), ignore_index=True)
    everything.to_csv(options.folder / "results.csv", index=False)
    draw_bars({title.replace(", ", ",\n"): runs for title, runs in panels.items()}, options.folder / "units.png")
    finish(everything, start)


if __name__ == "__main__":
    main()
