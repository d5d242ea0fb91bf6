"""Training once up to a checkpoint, from which several runs continue: a shared start, or the first of two phases."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from lightning_fire.experiments.runs import Run, merged
from lightning_fire.recipe.recipe import BEST, FIRST_PHASE, SHARED_START, VANILLA, Recipe


def with_shared_starts(runs: Sequence[Run], extra: Mapping[str, Any], keep: bool = False) -> list[Run]:
    """Share one training up to the first event among the runs that are the same until then.

    These are the runs whose method adds nothing but callbacks that let some epochs pass, see
    `MethodCallback.idle_epochs`. Finished ones keep their start, so that what a killed comparison has left is removed.
    """
    if "method" in extra:  # its effect on the methods is unknown
        return list(runs)
    waiting: dict[tuple[str, int], dict[float | None, list[Run]]] = defaultdict(lambda: defaultdict(list))
    start_of = {}
    idle = {layers: _idle_epochs(layers, extra) for layers in dict.fromkeys(run.configs for run in runs)}
    for run in runs:
        if (epochs := idle[run.configs]) == 0:
            continue
        if run.is_finished(extra):
            start_of[run] = _start_of(run, keep)
        else:
            waiting[run.configs[0], run.seed][epochs].append(run)
    for by_epochs in waiting.values():
        vanilla = by_epochs.pop(None, [])
        epochs, group = max(by_epochs.items(), key=lambda pair: len(pair[1]), default=(math.inf, []))
        group = [*group, *vanilla]
        if not group:
            continue
        start = _start_of(group[0], keep, None if epochs == math.inf else int(epochs))
        if len(group) > 1 or start.is_finished(extra):
            start_of |= dict.fromkeys(group, start)
    return [
        replace(run, start=start_of[run], checkpoint=start_of[run].products[0]) if run in start_of else run
        for run in runs
    ]


def _start_of(run: Run, keep: bool, epochs: int | None = None) -> Run:
    """Return the training of the base alone from which a run can continue."""
    folder = run.folder.parent.parent / SHARED_START / f"seed{run.seed}"
    path = folder / "start.ckpt"
    saves = {"SaveStart": {"path": str(path), **({} if epochs is None else {"epochs": epochs})}}
    return Run(SHARED_START, run.seed, folder, run.configs[:1], saves=saves, products=(path,), kept=keep)


def _idle_epochs(layers: Sequence[str], extra: Mapping[str, Any]) -> float | None:
    """Return how many epochs the methods of a run let pass: Inf, all of the first chunk of data; None, all.

    0 if it is not the base with methods alone, or if this is unknown.
    """
    from lightning_fire.callbacks.base.method import MethodCallback
    from lightning_fire.recipe.method_keys import METHOD_KEYS, callbacks_in
    from lightning_fire.when import Horizon

    try:
        base, *overlays = map(yaml.safe_load, layers)
        if "method" in base or any(set(overlay) - set(METHOD_KEYS) for overlay in overlays):
            return 0
        trainer = merged(base, extra).get("trainer") or {}
        bounds = [None if trainer.get(key) in (None, -1) else int(trainer[key]) for key in ("max_epochs", "max_steps")]
        methods = callbacks_in(merged(base, overlays[0])) if overlays else []
    except Exception:  # of any kind: the run itself reports it
        return 0
    every = {m.idle_epochs(Horizon(*bounds)) if isinstance(m, MethodCallback) else 0 for m in methods}
    return None if not every else every.pop() if len(every) == 1 else 0


def chosen_starts(starts: Mapping[str, int | str], names: Sequence[str] | None) -> dict[str, int | str]:
    """Keep those that were named."""
    if unknown := sorted(set(names or ()) - set(starts)):
        there = f"there are {', '.join(starts)}" if starts else "the recipe has no `starts`"
        raise ValueError(f"--starts: no {', '.join(unknown)}; {there}")
    return {name: when for name, when in starts.items() if names is None or name in names}


def with_first_phases(
    runs: Sequence[Run], recipe: Recipe, starts: Mapping[str, int | str], extra: Mapping[str, Any]
) -> list[Run]:
    """Continue each run with the later phases, from each checkpoint of a first-phase training with the same seed.

    A method `<method>.<start>` replaces `<method>` for that start.
    """
    phases, epochs = _plan_of(recipe, extra)
    numbers = sorted({when for when in recipe.starts.values() if when != BEST})
    if numbers and numbers[-1] > epochs[0]:
        raise ValueError(f"`starts` asks for a checkpoint after {numbers[-1]} epochs, but phase 1 has {epochs[0]}")
    own = {"data": {"init_args": {"phases": phases[:1], "epochs": epochs[:1]}}}
    saves = {"SaveStarts": {"epochs": numbers, "best": BEST in recipe.starts.values()}}
    first = {}
    for run in runs:
        folder = run.folder.parent.parent / FIRST_PHASE / f"seed{run.seed}"
        files = tuple(checkpoint_of(folder, when) for when in recipe.starts.values())
        base = recipe.layers(VANILLA)[:1]
        first[run.seed] = Run(FIRST_PHASE, run.seed, folder, base, overrides=own, saves=saves, products=files)
    return [
        replace(
            run,
            folder=run.folder.parent.parent / name / run.method / f"seed{run.seed}",
            configs=recipe.layers(special) if (special := f"{run.method}.{name}") in recipe.methods else run.configs,
            start=first[run.seed],
            checkpoint=checkpoint_of(first[run.seed].folder, when),
            branch=name,
            later_epochs=tuple(epochs[1:]),
        )
        for name, when in starts.items()
        for run in runs
    ]


def checkpoint_of(folder: Path, when: int | str) -> Path:
    """Return the checkpoint that a training of the first phase leaves."""
    return folder / ("best.ckpt" if when == BEST else f"epoch={when}.ckpt")


def _plan_of(recipe: Recipe, extra: Mapping[str, Any]) -> tuple[list[Any], list[int]]:
    data = merged(recipe.base, extra).get("data")
    arguments = data.get("init_args") if isinstance(data, dict) else None
    phases, epochs = (arguments.get(key) if isinstance(arguments, dict) else None for key in ("phases", "epochs"))
    if not isinstance(phases, list) or len(phases) < 2:
        raise ValueError(f"{recipe.path} has `starts`, which need data with two `phases` or more")
    epochs = [epochs] * len(phases) if isinstance(epochs, int) else epochs
    if not isinstance(epochs, list) or len(epochs) != len(phases) or not all(isinstance(n, int) for n in epochs):
        raise ValueError(f"`epochs` of the data in {recipe.path} must be a number for each phase, got {epochs}")
    return phases, epochs
