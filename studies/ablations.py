"""The paper's ablations on streams: number of Newton–Schulz steps, the exact projection, and the three polynomials.

python -m studies.ablations   # tables, results.csv and ablations.png in runs/ablations

`kept` is the accuracy on the test samples of the task before, right after the event: what the event costs at once.
"""

import time
from functools import partial

from studies.methods import fire, vanilla
from studies.runs import arguments, cell, draw_lines, finish, markdown, run, settings_of, tables
from studies.streams import STREAMS

STEPS = (1, 2, 3, 5, 10, 20, "exact")
METHODS = {"vanilla": vanilla}
METHODS |= {f"fire_{steps}": partial(fire, steps=steps) for steps in STEPS}
METHODS |= {f"fire_procrustes_{steps}": partial(fire, steps=steps, scale="procrustes") for steps in (1, 10)}
METHODS |= {
    f"{name}_{steps}": partial(fire, steps=steps, coefficients=name)
    for name in ("quintic", "muon")
    for steps in (5, 10)
}


def main() -> None:
    """Run the study."""
    options, start = arguments(__doc__, "ablations"), time.perf_counter()
    runs = run(settings_of(STREAMS, METHODS, options.seed_range), options.folder, options.jobs)
    print(tables(runs, STREAMS, (None, "vanilla", "fire_10", "fire_procrustes_10")))
    of = {stream: runs[runs.stream == stream] for stream in STREAMS}
    rows = [[f"`{method}`", *(cell(own, method, measure="kept") for own in of.values())] for method in METHODS]
    print("\n" + markdown(["kept right after the event", *(stream.replace("_", " ") for stream in STREAMS)], rows))
    by_steps = runs[runs.method.str.startswith("fire")].copy()
    by_steps["steps"] = by_steps.method.str.split("_").str[-1]
    by_steps["method"] = by_steps.method.str.rsplit("_", n=1).str[0]
    panels = {tasks.title: by_steps[by_steps.stream == stream] for stream, tasks in STREAMS.items()}
    draw_lines(panels, "steps", options.folder / "ablations.png", "Newton–Schulz steps")
    finish(runs, start)


if __name__ == "__main__":
    main()
