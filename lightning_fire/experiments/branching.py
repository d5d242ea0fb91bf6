"""A shared first part of several runs, trained once: up to the first event, or the first of two phases."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lightning_fire.experiments.runs import START, Run, merged, phases_and_epochs
from lightning_fire.recipe.recipe import BEST, FIRST_PHASE, SHARED_START, Recipe, as_yaml


def _before(run: Run, name: str, saves: Mapping[str, int | str | None], **others: Any) -> Run:
    """Return the run of the base alone, from whose checkpoints a run can continue."""
    folder = run.folder.parent.parent / name / f"seed{run.seed}"
    return replace(run, method=name, folder=folder, configs=run.configs[:1], saves=saves, **others)


def with_shared_starts(runs: Sequence[Run], keep: bool = False) -> list[Run]:
    """Train the runs that are equal up to the first event only once up to it.

    These are the runs whose method only adds callbacks that are idle in some initial epochs, see
    `ClockCallback.idle_epochs`. Finished runs keep their start, so that files of a killed comparison are removed.
    """
    waiting: dict[tuple[str, int], dict[float | None, list[Run]]] = defaultdict(lambda: defaultdict(list))
    layers = [tuple(map(as_yaml, run.configs)) for run in runs]
    idle = {of: _idle_epochs(run) for of, run in dict(zip(layers, runs, strict=True)).items()}
    start_of = {}
    for run, of in zip(runs, layers, strict=True):
        if idle[of] != 0 and run.is_finished():
            start_of[run] = _before(run, SHARED_START, {START: None}, kept=keep)
        elif (epochs := idle[of]) != 0:
            waiting[of[0], run.seed][epochs].append(run)
    for by_epochs in waiting.values():
        vanilla = by_epochs.pop(None, [])
        epochs, group = max(by_epochs.items(), key=lambda pair: len(pair[1]), default=(None, []))
        if group := [*group, *vanilla]:
            until = None if epochs is None or epochs == math.inf else int(epochs)
            start = _before(group[0], SHARED_START, {START: until}, kept=keep)
            if len(group) > 1 or start.is_finished():
                start_of |= dict.fromkeys(group, start)
    return [replace(run, start=start_of.get(run)) for run in runs]


def _idle_epochs(run: Run) -> float | None:
    """Number of initial epochs in which no method acts (Inf: the whole first chunk; None: the whole training).

    0 if unknown, or if the run changes more than the methods of the base.
    """
    from lightning_fire.callbacks.base import ClockCallback
    from lightning_fire.recipe.parser import METHOD_KEYS, callbacks_in
    from lightning_fire.when import Horizon

    base, *overlays = run.configs
    if (
        "train" in base
        or "method" in base
        or "method" in run.extra
        or any(set(overlay) - set(METHOD_KEYS) for overlay in overlays)
    ):
        return 0
    try:
        trainer = merged(base, run.extra).get("trainer") or {}
        bounds = [None if trainer.get(key) in (None, -1) else int(trainer[key]) for key in ("max_epochs", "max_steps")]
        methods = callbacks_in(merged(base, overlays[0])) if overlays else []
    except Exception:  # any error: the run itself reports it
        return 0
    every = {m.idle_epochs(Horizon(*bounds)) if isinstance(m, ClockCallback) else 0 for m in methods}
    return None if not every else every.pop() if len(every) == 1 else 0


def with_first_phases(runs: Sequence[Run], recipe: Recipe, names: Sequence[str] | None = None) -> list[Run]:
    """Continue each run with the later phases, from each checkpoint of a first-phase training with the same seed.

    A method `<method>.<start>` replaces `<method>` for that start. Only the starts with the given names are used.
    """
    if unknown := sorted(set(names or ()) - set(recipe.starts)):
        there = f"there are {', '.join(recipe.starts)}" if recipe.starts else "the recipe has no `starts`"
        raise ValueError(f"--starts: no {', '.join(unknown)}; {there}")
    if not recipe.starts:
        return list(runs)
    phases, epochs = phases_and_epochs(merged(recipe.base, runs[0].extra))
    last = max((when for when in recipe.starts.values() if isinstance(when, int)), default=0)
    if last > epochs[0]:
        raise ValueError(f"`starts` asks for a checkpoint after {last} epochs, but phase 1 has {epochs[0]}")
    extra = merged(runs[0].extra, {"data": {"init_args": {"phases": phases[:1], "epochs": epochs[:1]}}})
    files = {name: "best.ckpt" if when == BEST else f"epoch={when}.ckpt" for name, when in recipe.starts.items()}
    saves = {files[name]: when for name, when in recipe.starts.items()}
    return [
        replace(
            run,
            folder=run.folder.parent.parent / name / run.method / f"seed{run.seed}",
            configs=recipe.layers(special) if (special := f"{run.method}.{name}") in recipe.methods else run.configs,
            start=_before(run, FIRST_PHASE, saves, extra=extra),
            file=file,
            branch=name,
        )
        for name, file in files.items()
        if names is None or name in names
        for run in runs
    ]
