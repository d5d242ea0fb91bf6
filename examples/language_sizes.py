"""Gain of FIRE between two texts, by size of the network and length of phase 2.

python examples/language_sizes.py runs/language_sizes --root data   # it holds text/kjv.txt; see docs/language.md

For each size and length the recipe king_james_python_small_gpt is compared from the last checkpoint of its phase 1,
1500 steps on 20 kB. Phase 2 has as many steps as the length; its learning rate falls to a tenth within them.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import pandas as pd

from lightning_fire.experiments.statistics import difference

RECIPE = "language/continual_pretraining/king_james_python_small_gpt"
SIZES = {"0.1M": (2, 2, 64), "0.3M": (2, 3, 96), "0.8M": (4, 4, 128), "2M": (4, 6, 192)}  # depth, heads, dim
METHODS = ("vanilla", "fire", "fire_procrustes")
SMALL = ("0.1M", "0.3M")  # the two small sizes settle the scale: the others are run without fire_procrustes
STEPS_PER_EPOCH = 50  # the recipe's last checkpoint is after 30 epochs


def compare(size: str, length: int, options: argparse.Namespace) -> pd.DataFrame:
    """Run the methods at one size and length; return the results of all runs. Finished runs are not run again."""
    output = options.folder / f"{size}_{length}"
    depth, heads, dim = SIZES[size]
    net, data = "model.init_args.net.init_args", "data.init_args"
    settings = [f"{net}.depth={depth}", f"{net}.heads={heads}", f"{net}.dim={dim}", f"{data}.root={options.root}"]
    settings += [f"{data}.steps_per_epoch={STEPS_PER_EPOCH}", f"{data}.epochs=[30, {length // STEPS_PER_EPOCH}]"]
    methods = METHODS if size in SMALL else METHODS[:2]
    command = [sys.executable, "-m", "lightning_fire", "compare", RECIPE, "--starts", "late", "--methods", *methods]
    command += ["--seeds", str(options.seeds), "--jobs", str(options.jobs), "--output", str(output)]
    subprocess.run([*command, "--set", *settings], check=True)
    return pd.read_csv(output / "results.csv").assign(size=size, length=length)


def table(runs: pd.DataFrame) -> str:
    """Return the final losses of phase 2 and their paired differences to vanilla, in Markdown."""
    head = ["parameters", "steps of phase 2", "vanilla", *(f"{name} minus vanilla (95 %)" for name in METHODS[1:])]
    rows = [head, ["--:"] * len(head)]
    for (size, length), group in runs.groupby(["size", "length"], sort=False):
        final = {method: own.set_index("seed").final for method, own in group.groupby("method")}
        row = [size, str(length), f"{final['vanilla'].mean():.3f} ± {final['vanilla'].std():.3f}"]
        for method in METHODS[1:]:
            own = final.get(method, pd.Series(dtype=float)).to_dict()
            mean, low, high = difference(own, final["vanilla"].to_dict())
            row.append(f"{mean:+.3f} ({low:+.3f} to {high:+.3f})" if own else "–")
        rows.append(row)
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def draw(runs: pd.DataFrame, path: Path) -> None:
    """Draw the differences to vanilla by size, a panel for each length; points are seeds."""
    lengths = list(dict.fromkeys(runs.length))
    figure, panels = plt.subplots(1, len(lengths), figsize=(4.5 * len(lengths), 3.6), sharey=True, squeeze=False)
    for axes, length in zip(panels[0], lengths, strict=True):
        final = runs[runs.length == length].pivot(index=["size", "seed"], columns="method", values="final")
        sizes = [size for size in SIZES if size in final.index.levels[0]]
        for method in METHODS[1:]:
            gain = (final[method] - final["vanilla"]).dropna()
            of = [size for size in sizes if size in gain.index.get_level_values(0)]
            (line,) = axes.plot(of, [gain[size].mean() for size in of], label=method.replace("_", " "))
            for size in of:
                axes.plot([size] * len(gain[size]), gain[size], ".", color=line.get_color(), alpha=0.5)
        axes.axhline(0, color="grey", linewidth=1)
        axes.set(title=f"{length} steps of phase 2", xlabel="parameters")
        axes.grid(alpha=0.3)
    panels[0, 0].set_ylabel("final loss minus vanilla's, nats per token")
    panels[0, 0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where results are kept; what is there is not run again")
    parser.add_argument("--root", type=Path, default=Path("data"), help="folder that holds text/kjv.txt")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--lengths", nargs="+", type=int, default=[400, 1600], help="steps of phase 2")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2, help="trainings side by side")
    options = parser.parse_args()
    start = time.perf_counter()
    parts = [compare(size, length, options) for size in options.sizes for length in options.lengths]
    runs = pd.concat(parts)
    runs.to_csv(options.folder / "results.csv", index=False)
    draw(runs, options.folder / "language_sizes.png")
    print(f"{table(runs)}\n\n{(time.perf_counter() - start) / 60:.1f} minutes; {options.folder / 'results.csv'}")


if __name__ == "__main__":
    main()
