"""One training on the first chunk of data for all methods that do nothing in it."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.utilities.seed import _collect_rng_states, _set_rng_states
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from lightning_fire.compare.runs import SHARED_START, Run, is_finished
from lightning_fire.recipe.strict_yaml import read_yaml

# what does nothing until the data changes, if `when` is AtNewData, or if `start_chunk` is at least 1
_EVENTS = {"FIRECallback", "FullReset", "ShrinkAndPerturb", "DASH", "PlasticityInjection"}
_FROM_A_CHUNK_ON = {"L2Init", "Parseval", "ReDo", "ContinualBackprop", "SelfNormalizedReset"}


class SaveStart(Callback):
    """Ends the training with the first chunk of data, and saves a checkpoint and the random states then.

    Args:
        path: The checkpoint.

    Raises:
        MisconfigurationException: When training starts, if the DataModule has no `chunk_at(epoch)`.
    """

    def __init__(self, path: str):
        self.path = Path(path)
        self._reached = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check the data."""
        if not hasattr(trainer.datamodule, "chunk_at"):
            raise MisconfigurationException(
                f"{type(trainer.datamodule).__name__} has no chunk_at(epoch), which tells where its first chunk ends"
            )
        trainer.fit_loop.min_epochs = trainer.fit_loop.epoch_loop.min_steps = None  # they are of the whole training

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop at the end of the chunk."""
        data, epoch = trainer.datamodule, trainer.current_epoch
        self._reached = data.chunk_at(epoch + 1) != data.chunk_at(epoch)
        if self._reached:
            trainer.should_stop = True

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save, after all that the end of an epoch brings."""
        if self._reached:
            if trainer.is_global_zero:
                states = _collect_rng_states()
                algorithm, keys, *rest = states["numpy"]
                states["numpy"] = (algorithm, keys.tolist(), *rest)  # loads without unpickling
                torch.save(states, _random_states(self.path))
            trainer.save_checkpoint(self.path)


class GoOnFromStart(Callback):
    """Puts the random states back that `SaveStart` saved: what draws from them goes on, and does not begin again.

    Lightning draws a different number of times before the first batch of a resumed training: the draws are others than
    those of a whole one.

    Args:
        path: The checkpoint.
    """

    def __init__(self, path: str):
        self.path = Path(path)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put them back."""
        _set_rng_states(torch.load(_random_states(self.path), weights_only=True))


def with_shared_starts(runs: Sequence[Run], extra: Mapping[str, Any]) -> list[Run]:
    """Let runs that are the same in their first chunk go on from one training on it.

    These are the runs whose overlay adds nothing but methods of this package that wait for new data: `when` is
    `AtNewData`, or `start_chunk` at least 1.

    Args:
        runs: Runs that are to be trained, or have finished.
        extra: Configuration on top of each run's own, as for YAML.

    Returns:
        They, in their order; where several that have not finished are the same, with a `start`.
    """
    if "intervention" in extra:  # nobody knows what it makes the methods do
        return list(runs)
    alike = defaultdict(list)
    for run in runs:
        if not is_finished(run, extra) and _is_idle_at_first(run):
            alike[run.configs[0], run.seed].append(run)
    start_of = {}
    for (base, seed), group in alike.items():
        folder = group[0].folder.parent.parent / SHARED_START / f"seed{seed}"
        start = Run(SHARED_START, seed, folder, (base,), checkpoint=folder / "start.ckpt")
        if len(group) > 1 or is_finished(start, extra):
            start_of |= dict.fromkeys(group, start)
    return [replace(run, start=start_of.get(run)) for run in runs]


def _is_idle_at_first(run: Run) -> bool:
    """Tell whether a run is the base with methods that all wait for new data, and nothing else."""
    try:
        base, *overlays = (read_yaml(path) for path in run.configs)
        methods = [overlay["intervention"] for overlay in overlays if set(overlay) == {"intervention"}]
        return (
            "intervention" not in base
            and len(methods) == len(overlays)
            and all(_waits(spec) for method in methods for spec in (method if isinstance(method, list) else [method]))
        )
    except (AttributeError, KeyError, TypeError, ValueError):  # the run itself will say what is wrong with it
        return False


def _waits(method: Mapping[str, Any]) -> bool:
    arguments, when = method.get("init_args") or {}, (method.get("init_args") or {}).get("when") or {}
    if _own(method["class_path"]) in _FROM_A_CHUNK_ON:
        return arguments.get("start_chunk", 0) >= 1
    at_new_data = _own(when.get("class_path", "")) == "AtNewData"
    skips = (when.get("init_args") or {}).get("skip_first", True) is True
    return _own(method["class_path"]) in _EVENTS and at_new_data and skips


def _own(class_path: str) -> str:
    """Return the name of a class of this package; empty for any other."""
    module, _, name = class_path.rpartition(".")
    return name if not module or module.split(".")[0] == "lightning_fire" else ""


def _random_states(checkpoint: Path) -> Path:
    return checkpoint.with_suffix(".random")
