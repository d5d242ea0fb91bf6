"""Methods compared on a second phase of training that goes on from several checkpoints of the first."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from lightning_fire.experiments.runs import Run, merged
from lightning_fire.recipe.recipe import BEST, VANILLA, Recipe

FIRST_PHASE = "first_phase"
_MONITOR = "val/loss"


class SaveStarts(Callback):
    """Saves checkpoints at the end of epochs, and of the epoch with the lowest validation loss, `epoch=N.ckpt` and
    `best.ckpt` in `trainer.default_root_dir`.
    """

    def __init__(self, epochs: list[int], best: bool = True):
        self.epochs, self.best = epochs, best
        self._lowest, self._validated = float("inf"), False

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note that there is a loss to compare."""
        self._validated = not trainer.sanity_checking

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save."""
        done, folder = trainer.current_epoch + 1, Path(trainer.default_root_dir)
        if done in self.epochs:
            trainer.save_checkpoint(_after(folder, done))
        if not self.best or not self._validated:
            return
        self._validated = False
        if _MONITOR not in trainer.callback_metrics:
            raise MisconfigurationException(f"the best checkpoint is that of the lowest {_MONITOR}: nobody logs it")
        if (loss := float(trainer.callback_metrics[_MONITOR])) < self._lowest:
            self._lowest = loss
            trainer.save_checkpoint(_best(folder))


def chosen_starts(starts: Mapping[str, int | str], names: Sequence[str] | None) -> dict[str, int | str]:
    """Keep those that were named."""
    if unknown := sorted(set(names or ()) - set(starts)):
        there = f"there are {', '.join(starts)}" if starts else "the recipe has no `starts`"
        raise ValueError(f"--starts: no {', '.join(unknown)}; {there}")
    return {name: when for name, when in starts.items() if names is None or name in names}


def first_phases(recipe: Recipe, seeds: Sequence[int], output: Path, extra: Any) -> list[Run]:
    """List the trainings of the first phase alone, one for each seed, which leave the checkpoints."""
    phases, epochs = _plan_of(recipe, extra)
    starts = recipe.starts
    numbers = sorted({when for when in starts.values() if when != BEST})
    if numbers and numbers[-1] > epochs[0]:
        raise ValueError(f"`starts` asks for a checkpoint after {numbers[-1]} epochs, but phase 1 has {epochs[0]}")
    keep = {"epochs": numbers, "best": BEST in starts.values()}
    own = {"data": {"init_args": {"phases": phases[:1], "epochs": epochs[:1]}}}
    runs = []
    for seed in seeds:
        folder = output / FIRST_PHASE / f"seed{seed}"
        files = tuple(checkpoint_of(folder, when) for when in starts.values())
        runs.append(
            Run(FIRST_PHASE, seed, folder, recipe.layers(VANILLA)[:1], overrides=own, products=files, saving=keep)
        )
    return runs


def second_phases(
    runs: Sequence[Run], before: Sequence[Run], recipe: Recipe, starts: Mapping[str, int | str], extra: dict[str, Any]
) -> list[Run]:
    """Let each run go on from each checkpoint, with the phases that follow.

    A method `<method>.<start>` takes the place of `<method>` for that start.
    """
    _, epochs = _plan_of(recipe, extra)
    first = {run.seed: run for run in before}
    every = []
    for name, when in starts.items():
        for run in runs:
            if run.seed not in first:
                continue
            checkpoint = checkpoint_of(first[run.seed].folder, when)
            done, _ = epochs_and_steps_of(checkpoint)
            special = f"{run.method}.{name}"
            configs = recipe.layers(special) if special in recipe.methods else run.configs
            every.append(
                replace(
                    run,
                    folder=run.folder.parent.parent / name / run.method / f"seed{run.seed}",
                    configs=configs,
                    overrides=merged(run.overrides, {"data": {"init_args": {"epochs": [done, *epochs[1:]]}}}),
                    resumed=checkpoint,
                    before=first[run.seed],
                    epochs_before=done,
                    branch=name,
                )
            )
    return every


def epochs_and_steps_of(checkpoint: Path) -> tuple[int, int]:
    """Return after how many epochs and optimizer steps a checkpoint was written."""
    content = torch.load(checkpoint, weights_only=True, mmap=True, map_location="cpu")
    return content["epoch"] + 1, content["global_step"]


def checkpoint_of(folder: Path, when: int | str) -> Path:
    """Return the checkpoint that a training of the first phase leaves."""
    return _best(folder) if when == BEST else _after(folder, when)


def _best(folder: Path) -> Path:
    return folder / "best.ckpt"


def _after(folder: Path, epochs: int) -> Path:
    return folder / f"epoch={epochs}.ckpt"


def _plan_of(recipe: Recipe, extra: Mapping[str, Any]) -> tuple[list, list[int]]:
    data = merged(dict(recipe.base), dict(extra)).get("data")
    arguments = data.get("init_args") if isinstance(data, dict) else None
    phases, epochs = (arguments.get(key) if isinstance(arguments, dict) else None for key in ("phases", "epochs"))
    if not isinstance(phases, list) or len(phases) < 2:
        raise ValueError(f"{recipe.path} has `starts`, which need data with two `phases` or more")
    epochs = [epochs] * len(phases) if isinstance(epochs, int) else epochs
    if not isinstance(epochs, list) or len(epochs) != len(phases) or not all(isinstance(n, int) for n in epochs):
        raise ValueError(f"`epochs` of the data in {recipe.path} must be a number for each phase, got {epochs}")
    return phases, epochs
