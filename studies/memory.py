"""What of FIRE's gain is memory? FIRE beside controls that keep less, or change less, by kind of change.

python -m studies.memory   # tables, results.csv and memory.png in runs/memory

FIRE minus the isometries of the *initial* weights, each of the norm that FIRE would give it, is what the network's past
is worth; these minus a full reset are what isometry and scale are worth without any past.
"""

import time

from studies.methods import METHODS
from studies.runs import arguments, draw_bars, finish, run, settings_of, tables
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
    references = (None, "vanilla", "full_reset", "isometry_of_initial", "isometry_of_initial_procrustes")
    print(tables(runs, STREAMS, references))
    panels = {tasks.title: runs[runs.stream == stream] for stream, tasks in STREAMS.items()}
    draw_bars(panels, options.folder / "memory.png")
    finish(runs, start)


if __name__ == "__main__":
    main()
