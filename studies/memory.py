"""Memory as a part of FIRE's gain: FIRE beside controls that keep less, or change less, by kind of change.

python -m studies.memory   # tables, results.csv and memory.png in runs/memory

FIRE minus the isometries of the *initial* weights, each of the norm that FIRE would give it, is the gain from
earlier training; these minus a full reset are the gain from isometry and scale without earlier training.
"""

import time

from studies.methods import METHODS
from studies.runs import arguments, cell, draw_bars, finish, markdown, measure_of, run, settings_of, tables
from studies.streams import STREAMS

NAMES = (
    "vanilla",
    "reset_optimizer",
    "reset_head",
    "full_reset",
    "full_reset_small",
    "isometry_of_initial",
    "isometry_of_initial_procrustes",
    "shrink_and_perturb",
    "fire",
    "fire_procrustes",
)


def main() -> None:
    """Run the study."""
    options, start = arguments(__doc__, "memory"), time.perf_counter()
    settings = settings_of(STREAMS, {name: METHODS[name] for name in NAMES}, options.seed_range)
    runs = run(settings, options.folder, options.jobs)
    print(tables(runs, STREAMS, (None, "full_reset")) + "\n")
    parts = {
        "FIRE minus full reset (95 %)": ("fire", "full_reset"),
        "… of which isometry and norm": ("isometry_of_initial", "full_reset"),
        "… of which memory": ("fire", "isometry_of_initial"),
        "FIRE with Procrustes' scale minus full reset (95 %)": ("fire_procrustes", "full_reset"),
        "… of which isometry and norm ": ("isometry_of_initial_procrustes", "full_reset"),
        "… of which memory ": ("fire_procrustes", "isometry_of_initial_procrustes"),
    }
    of = [runs[runs.stream == stream] for stream in STREAMS]
    rows = [[label, *(cell(own, *pair, measure_of(own.stream.iloc[0])) for own in of)] for label, pair in parts.items()]
    print(markdown(["", *(tasks.title for tasks in STREAMS.values())], rows))
    panels = {tasks.title: runs[runs.stream == stream] for stream, tasks in STREAMS.items()}
    draw_bars(panels, options.folder / "memory.png")
    finish(runs, start)


if __name__ == "__main__":
    main()
