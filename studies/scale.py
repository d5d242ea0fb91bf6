"""Scale of the weights after an event, by normalization: directions × Frobenius norms, on four streams.

python -m studies.scale   # table, results.csv and scale.png in runs/scale

At each event every weight gets one of three directions, and one of five norms. Directions: its current values, its
initial ones (all other parameters are reset, too), or the nearest isometry of its current ones, by ten Newton–Schulz
steps (FIRE). Norms: that of FIRE with the paper's scale, with none, with Procrustes'; initial; 0.05 of initial.
"""

import time
from functools import partial

import torch
from torch import Tensor
from torch.optim import Optimizer

from lightning_fire.functional import fire
from lightning_fire.methods import drop_state
from lightning_fire.where import normalized_weights
from studies.ensemble import Act, Member
from studies.methods import WHERE, reset, vanilla
from studies.runs import arguments, draw_bars, finish, run, settings_of, tables
from studies.streams import STREAMS

NORMS = ("paper", "none", "procrustes", "initial", "small")
DIRECTIONS = ("vanilla", "reset", "fire")  # current weights, initial weights, nearest isometries
NORMALIZATIONS = ("none", "layer", "batch")


def norm_of(weight: Tensor, initial: Tensor, name: str) -> Tensor:
    """Return the Frobenius norm that a name stands for, of a weight `(out, in)`."""
    if name in ("initial", "small"):
        return initial.norm() * (1.0 if name == "initial" else 0.05)
    return fire(weight, scale=name).norm()


@torch.no_grad()
def act(member: Member, optimizer: Optimizer, direction: str, norms: tuple[str, str]) -> None:
    """Give every weight a direction and a norm: the first where a normalization layer comes later, else the second."""
    views = WHERE.select(member.network)
    normalized = normalized_weights(member.network, views)
    found = {
        view.name: norm_of(view.read(), member.initial[view.name], norms[view.name not in normalized]) for view in views
    }
    if direction == "reset":
        reset(member, optimizer)
    for view in views:
        weight = fire(view.read()) if direction == "fire" else view.read()
        view.write(weight * (found[view.name] / weight.norm()))
    drop_state(optimizer, [view.parameter for view in views])


METHODS: dict[str, Act] = {"vanilla": vanilla} | {
    f"{direction}_{norm}": partial(act, direction=direction, norms=(norm, norm))
    for direction in DIRECTIONS
    for norm in NORMS
}
METHODS["fire_auto"] = partial(act, direction="fire", norms=("paper", "procrustes"))


def main() -> None:
    """Run the study."""
    options, start = arguments(__doc__, "scale"), time.perf_counter()
    settings = [
        setting
        for normalization in NORMALIZATIONS
        for setting in settings_of(STREAMS, METHODS, options.seed_range, normalization=normalization)
    ]
    runs = run(settings, options.folder, options.jobs)
    for normalization in NORMALIZATIONS:
        own = runs[runs.normalization == normalization]
        references = (None, "vanilla", "reset_initial", "fire_paper")
        print(f"\n### Normalization: {normalization}\n\n{tables(own, STREAMS, references)}")
    panels = {
        f"{stream.replace('_', ' ')},\n{normalization.replace('none', 'no')} normalization": runs[
            (runs.stream == stream) & (runs.normalization == normalization)
        ]
        for normalization in NORMALIZATIONS
        for stream in ("random_labels", "permuted_inputs")
    }
    draw_bars(panels, options.folder / "scale.png")
    finish(runs, start)


if __name__ == "__main__":
    main()
