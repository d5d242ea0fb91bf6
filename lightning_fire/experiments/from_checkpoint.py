"""Runs that continue from the checkpoint of an earlier training: `lightning-fire compare RECIPE --from CKPT`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lightning_fire.experiments.runs import Run, merged
from lightning_fire.recipe.recipe import SCRATCH, VANILLA, Recipe

OPTIMIZER_STATE = "start/optimizer_state"  # logged key: whether it was loaded
HOLD_OUT = (
    "--from: the validation data must not be part of the training data of {}, otherwise continuing looks better than it"
    " is; this cannot be checked here"
)


def with_scratch(recipe: Recipe, methods: Sequence[str], alone: bool) -> tuple[Recipe, list[str]]:
    """Add `scratch` to a recipe; unless runs are started one by one, also add it and `vanilla` to the methods to run.

    Raises:
        ValueError: If the recipe has starts of its own, or a method of that name.
    """
    if recipe.starts:
        raise ValueError(f"{recipe.path} has `starts`: --from cannot be used with it")
    if SCRATCH in recipe.methods:
        raise ValueError(f"{recipe.path} has a method {SCRATCH}, which --from adds: rename it")
    both = () if alone else (VANILLA, SCRATCH)
    return replace(recipe, methods={**recipe.methods, SCRATCH: {}}), list(dict.fromkeys([*both, *methods]))


def from_checkpoint(runs: Sequence[Run], path: Path) -> list[Run]:
    """Start each run from the weights of a checkpoint, except `scratch`, which only gets the same data.

    Raises:
        ValueError: If the file is not a checkpoint that can be read.
        OSError: If it does not exist, or cannot be read.
    """
    from lightning_fire.checkpoints.earlier_training import digest_of, read_earlier_training

    read_earlier_training(path)  # raises an error before anything is trained
    given = {"path": str(path.resolve()), "sha256": digest_of(path)}  # part of the fingerprint of a run

    def extra(run: Run) -> dict[str, Any]:
        arguments = {**given, "only_data": run.method == SCRATCH}
        start = {"class_path": "lightning_fire.experiments.earlier_weights.EarlierWeights", "init_args": arguments}
        return merged(run.extra, {"trainer": {"callbacks+": [start]}})

    return [replace(run, extra=extra(run)) for run in runs]


def about_optimizers(curves: Mapping[Any, Mapping[str, Any]]) -> str:
    """Describe whether the optimizers of the runs continue from their state in the checkpoint."""
    loaded = {bool(run[OPTIMIZER_STATE][1][0]) for run in curves.values() if OPTIMIZER_STATE in run}
    if loaded == {True}:
        return "optimizers: continue with their state in the checkpoint, at the learning rates of the recipe"
    few = "in some runs" if True in loaded else "in all runs"
    return f"optimizers: new {few}, as their state in the checkpoint does not fit; the log.txt of a run says why"
