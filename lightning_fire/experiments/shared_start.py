"""One training up to the first event for all methods that do nothing before it."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import yaml
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from lightning_fire._lightning import random_states, set_random_states
from lightning_fire.contracts import HasChunkAt, offers
from lightning_fire.experiments.runs import SHARED_START, Run, is_finished, merged

# what does nothing until the data changes, if `when` is AtNewData, or if `start_chunk` is at least 1
_EVENTS = {"FIRECallback", "FullReset", "ShrinkAndPerturb", "DASH", "PlasticityInjection", "OptimizerReset"}
_FROM_A_CHUNK_ON = {"L2Init", "Parseval", "ReDo", "ContinualBackprop", "SelfNormalizedReset"}
_Wait = int | str  # whole epochs, or one of
_NEW_DATA, _ANY = "new data", "anything"


class SaveStart(Callback):
    """Ends the training early, and saves a checkpoint and the random states then."""

    def __init__(self, path: str, epochs: int | None = None):
        self.path, self.epochs = Path(path), epochs
        self._reached = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check the data."""
        if self.epochs is None and not offers(trainer.datamodule, HasChunkAt):
            raise MisconfigurationException(
                f"{type(trainer.datamodule).__name__} has no chunk_at(epoch), which tells where its first chunk ends"
            )
        trainer.fit_loop.min_epochs = trainer.fit_loop.epoch_loop.min_steps = None  # they are of the whole training

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop at the end."""
        data, epoch = trainer.datamodule, trainer.current_epoch
        if self.epochs is None:
            self._reached = data.chunk_at(epoch + 1) != data.chunk_at(epoch)
        else:
            self._reached = epoch + 1 >= self.epochs
        if self._reached:
            trainer.should_stop = True

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save, after all that the end of an epoch brings."""
        if self._reached:
            if trainer.is_global_zero:
                states = random_states()
                algorithm, keys, *rest = states["numpy"]
                states["numpy"] = (algorithm, keys.tolist(), *rest)  # loads without unpickling
                torch.save(states, _random_states(self.path))
            trainer.save_checkpoint(self.path)


class GoOnFromStart(Callback):
    """Puts the random states back that `SaveStart` saved: what draws from them goes on, and does not begin again.

    Lightning draws a different number of times before the first batch of a resumed training: the draws are others than
    those of a whole one.
    """

    def __init__(self, path: str):
        self.path = Path(path)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put them back."""
        set_random_states(torch.load(_random_states(self.path), weights_only=True))


def with_shared_starts(runs: Sequence[Run], extra: Mapping[str, Any], keep: bool = False) -> list[Run]:
    """Let runs that are the same up to the first event go on from one training up to there.

    These are the runs whose method adds nothing but callbacks of this package that wait: for new data (`when` is
    `AtNewData`, or `start_chunk` at least 1), or all for the same share of training (`AtFraction`, of `max_epochs`).
    Unfinished ones get a `start`; finished ones too, so that `execute` removes what a killed comparison has left.
    """
    if "intervention" in extra:  # nobody knows what it makes the methods do
        return list(runs)
    waiting: dict[tuple, dict[_Wait, list[Run]]] = defaultdict(lambda: defaultdict(list))
    start_of = {}
    for run in runs:
        waits = _waits_of(run, extra)
        if waits is None or len(waits) > 1:
            continue
        if is_finished(run, extra):
            start_of[run] = _start_of(run, keep)
        else:
            waiting[run.configs[0], run.seed][next(iter(waits), _ANY)].append(run)
    for alike in waiting.values():
        idle = alike.pop(_ANY, [])  # they wait for ever
        wait, group = max(alike.items(), key=lambda pair: len(pair[1]), default=(_NEW_DATA, []))
        group = [*group, *idle]
        if not group:
            continue
        start = _start_of(group[0], keep, None if wait == _NEW_DATA else wait)
        if len(group) > 1 or is_finished(start, extra):
            start_of |= dict.fromkeys(group, start)
    return [replace(run, start=start_of.get(run)) for run in runs]


def _start_of(run: Run, keep: bool, epochs: int | None = None) -> Run:
    """Return the training of the base alone that a run can go on from."""
    folder = run.folder.parent.parent / SHARED_START / f"seed{run.seed}"
    checkpoint = {"checkpoint": folder / "start.ckpt", "checkpoint_epochs": epochs, "kept": keep}
    return Run(SHARED_START, run.seed, folder, run.configs[:1], **checkpoint)


def _waits_of(run: Run, extra: Mapping[str, Any]) -> set[_Wait] | None:
    """Tell what the methods of a run wait for; None if it is not the base with methods that all wait, and no more."""
    try:
        base, *overlays = map(yaml.safe_load, run.configs)
        methods = [overlay["intervention"] for overlay in overlays if set(overlay) == {"intervention"}]
        if "intervention" in base or len(methods) != len(overlays):
            return None
        trainer = merged(base, dict(extra)).get("trainer") or {}
        waits = {
            _wait(spec, trainer) for method in methods for spec in (method if isinstance(method, list) else [method])
        }
    except (AttributeError, KeyError, TypeError, ValueError):  # the run itself will say what is wrong with it
        return None
    return None if None in waits else waits


def _wait(method: Mapping[str, Any], trainer: Mapping[str, Any]) -> _Wait | None:
    """Tell what a method waits for; None if it may act at once."""
    arguments, when = method.get("init_args") or {}, (method.get("init_args") or {}).get("when") or {}
    name, schedule, settings = _own(method["class_path"]), _own(when.get("class_path", "")), when.get("init_args") or {}
    if name in _FROM_A_CHUNK_ON:
        return _NEW_DATA if arguments.get("start_chunk", 0) >= 1 else None
    if name not in _EVENTS:
        return None
    if schedule == "AtNewData":
        return _NEW_DATA if settings.get("skip_first", True) is True else None
    bounded = trainer.get("max_steps", -1) == -1 and isinstance(trainer.get("max_epochs"), int)
    if schedule == "AtFraction" and bounded:
        epochs = trainer["max_epochs"]
        return next((epoch for epoch in range(1, epochs) if epoch / epochs >= settings["fraction"]), None)
    return None


def _own(class_path: str) -> str:
    """Return the name of a class of this package; empty for any other."""
    module, _, name = class_path.rpartition(".")
    return name if not module or module.split(".")[0] == "lightning_fire" else ""


def _random_states(checkpoint: Path) -> Path:
    return checkpoint.with_suffix(".random")
