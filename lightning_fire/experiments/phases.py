"""The comparison of a recipe with `starts`: phase 1 once for each seed, then phase 2 from each checkpoint."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from lightning_fire.experiments import phase_report
from lightning_fire.experiments.deliver import deliver, place, title_of
from lightning_fire.experiments.phase_history import PhaseHistory, read_first_phase, read_phase_history
from lightning_fire.experiments.report import MINUS
from lightning_fire.experiments.runs import Run
from lightning_fire.experiments.starts import FIRST_PHASE, checkpoint_of, epochs_and_steps_of, second_phases
from lightning_fire.experiments.train import train_each
from lightning_fire.recipe.recipe import Recipe


def compare_phases(
    before: Sequence[Run],
    runs: Sequence[Run],
    reference: str,
    recipe: Recipe,
    starts: Mapping[str, int | str],
    output: Path,
    jobs: int,
    extra: dict[str, Any],
    publish: bool = True,
) -> dict[str, dict[str, list[dict[str, float]]]]:
    """Train, print the table, write it as CSV and picture, and return the numbers of each start, method and run."""
    print(f"phase 1: {len(before)} runs")
    firsts, failed_before = train_each(before, jobs, extra, read_first_phase)
    after = second_phases(runs, list(firsts), recipe, starts, extra)
    if not after:
        raise SystemExit("no run of phase 1 finished")
    print(f"phase 2: {len(after)} runs")
    curves, failed = train_each(after, jobs, extra, read_phase_history)
    if not curves:
        raise SystemExit("no run finished")
    phases: dict[str, dict[str, dict[int, PhaseHistory]]] = {}
    methods = list(dict.fromkeys(run.method for run in runs))
    for run, curve in sorted(curves.items(), key=lambda pair: methods.index(pair[0].method)):
        phases.setdefault(run.branch, {}).setdefault(run.method, {})[run.seed] = curve
    phases = {name: phases[name] for name in starts if name in phases}
    if publish:
        _publish(phases, reference, {run.seed: curve for run, curve in firsts.items()}, recipe, starts, output)
    if failed or failed_before:
        raise SystemExit(f"{len(failed) + len(failed_before)} of {len(after) + len(before)} runs failed")
    return {
        start: {
            m: [phase_report.numbers(phases, start, m, seed, reference) for seed in by_seed]
            for m, by_seed in methods_.items()
        }
        for start, methods_ in phases.items()
    }


def _publish(
    phases: phase_report.Phases,
    reference: str,
    firsts: phase_report.Firsts,
    recipe: Recipe,
    starts: Mapping[str, int | str],
    output: Path,
) -> None:
    taken = {
        name: {
            seed: epochs_and_steps_of(checkpoint_of(output / FIRST_PHASE / f"seed{seed}", starts[name]))[1]
            for seed in firsts
        }
        for name in phases
    }
    deliver(
        output,
        phase_report.table(phases, reference),
        {
            "results.csv": partial(phase_report.write_csv, phases, reference),
            "comparison.png": partial(phase_report.draw, phases, firsts, taken, title=title_of(recipe)),
        },
        "losses: nats per token on the validation blocks, mean ± standard deviation (n - 1) over the seeds; steps to"
        f" {reference}'s: until the loss is that of {reference} at the end\n{MINUS}",
    )
    for name, by_seed in taken.items():
        place(f"start {name}", f"after {', '.join(f'{steps:.0f}' for steps in by_seed.values())} steps of phase 1")
    place("TensorBoard", f"tensorboard --logdir {output}")
