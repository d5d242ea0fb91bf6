"""What remembers the network before an event, and follows it: target networks, and best values."""

import math
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from lightning.pytorch import Trainer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from lightning_fire._lightning import undeclared
from lightning_fire._private import is_a
from lightning_fire.contracts import HasSyncTargets, implements


class Follower(Protocol):
    """Something in a training that must follow an event which makes another network."""

    def __call__(self, trainer: Trainer, new_data: bool) -> Sequence[str]:
        """Follow the event; return a few words on each thing that was done.

        Args:
            trainer: The Trainer.
            new_data: Whether the event came with new data.
        """


def sync_targets(trainer: Trainer, new_data: bool) -> Sequence[str]:
    """Call `sync_targets()` of the module, which copies the new weights into target networks."""
    module = trainer.lightning_module
    if not implements(module, HasSyncTargets):
        return ()
    module.sync_targets()
    return ["target networks copied"]


def forget_best(trainer: Trainer, new_data: bool) -> Sequence[str]:
    """Let EarlyStopping, ReduceLROnPlateau and, with new data, ModelCheckpoint start a new search.

    The best checkpoint so far stays on disk, and `best_model_path` names it until there is a better one.
    """
    forgotten = []
    for each in undeclared(trainer).callbacks:
        if is_a(each, "EarlyStopping") and math.isfinite(each.best_score):
            each.wait_count, each.best_score = 0, _worst(each.monitor_op is torch.lt)
            forgotten.append(f"EarlyStopping's best {each.monitor}")
        elif is_a(each, "ModelCheckpoint") and each.monitor is not None and new_data and each.best_k_models:
            each.best_k_models.clear()
            each.kth_best_model_path, each.best_model_score = "", None
            each.kth_value = _worst(each.mode == "min")
            forgotten.append(f"ModelCheckpoint's best {each.monitor}")
    for config in trainer.lr_scheduler_configs:
        scheduler: Any = config.scheduler
        if isinstance(scheduler, ReduceLROnPlateau) and math.isfinite(scheduler.best):
            scheduler.best, scheduler.num_bad_epochs = float(_worst(scheduler.mode == "min")), 0
            forgotten.append("ReduceLROnPlateau's best value")
    return [f"reset: {', '.join(forgotten)}"] if forgotten else []


DEFAULT_FOLLOWERS: Sequence[Follower] = (forget_best,)
"""Followers of each event that makes another network; target networks follow each event that changes outputs."""


def _worst(minimize: bool) -> torch.Tensor:
    return torch.tensor(math.inf if minimize else -math.inf)
