"""FIRE by layers: first, hidden, last and combinations, beside a reset of the same layers.

python -m studies.layers   # tables, results.csv and layers.png in runs/layers

The network has three weights: first (196 to 100), hidden (100 to 100) and last (100 to 10).
"""

import time
from functools import partial

from studies.ensemble import Act
from studies.methods import fire, reset, vanilla
from studies.runs import arguments, draw_bars, finish, run, settings_of, tables
from studies.streams import STREAMS

LAYERS = {"first": r"layers\.1\.", "hidden": r"layers\.3\.", "last": "head"}
SETS = [("first",), ("hidden",), ("last",), ("first", "hidden"), ("hidden", "last"), ("first", "hidden", "last")]


def methods() -> dict[str, Act]:
    """Return FIRE with two scales, and the reset, of each set of layers."""
    found: dict[str, Act] = {"vanilla": vanilla}
    for names in SETS:
        layers, label = tuple(LAYERS[name] for name in names), "all" if len(names) == 3 else "_".join(names)
        found[f"fire_{label}"] = partial(fire, layers=layers)
        found[f"fire_procrustes_{label}"] = partial(fire, layers=layers, scale="procrustes")
        found[f"reset_{label}"] = partial(reset, layers=layers)
    return found


def main() -> None:
    """Run the study."""
    every, start = methods(), time.perf_counter()
    options = arguments(__doc__, "layers", lambda p: p.add_argument("--methods", nargs="+", default=list(every)))
    settings = settings_of(STREAMS, {name: every[name] for name in options.methods}, options.seed_range)
    runs = run(settings, options.folder, options.jobs)
    print(tables(runs, STREAMS, (None, "vanilla", "reset_all")))
    draw_bars(
        {tasks.title: runs[runs.stream == stream] for stream, tasks in STREAMS.items()}, options.folder / "layers.png"
    )
    finish(runs, start)


if __name__ == "__main__":
    main()
