"""Callback that starts a fit from the weights of an earlier training."""

from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from lightning_fire._lightning import ends_search, undeclared
from lightning_fire.callbacks.clock import TrainerClock
from lightning_fire.callbacks.log import log_now
from lightning_fire.checkpoints.earlier_training import digest_of, read_earlier_training
from lightning_fire.experiments.from_checkpoint import OPTIMIZER_STATE
from lightning_fire.messages import inform


class EarlierWeights(Checkpoint):
    """Starts a fit from the weights of an earlier training. Its first data counts as new: methods act at the start.

    Optimizer state is loaded if it fits. Epochs, steps and learning rates start at 0. Initial values are those of the
    module before loading: as a `Checkpoint`, this callback runs after the methods that copy them.

    Args:
        path: The checkpoint, of any format that `lightning-fire diagnose` reads.
        sha256: Its digest.
        only_data: Whether only to check that the weights fit, without loading them.

    Raises:
        ValueError: Before training, if the weights do not fit, the digest of the file differs, or the module for
            `only_data` already has these weights.
    """

    def __init__(self, path: str, sha256: str, only_data: bool = False):
        self.path, self.sha256, self.only_data = path, sha256, only_data
        self._loaded: float | None = None
        self._resumed = False  # whether the fit that begins has loaded a checkpoint of its own training

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self._resumed |= not ends_search(trainer)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        resumed, self._resumed = self._resumed, False
        if resumed:
            return
        for callback in undeclared(trainer).callbacks:
            if isinstance(clock := getattr(callback, "clock", None), TrainerClock):
                clock.follow_older_data()
        if digest_of(self.path) != self.sha256:
            raise ValueError(f"{self.path} has changed since the comparison began: start it again")
        earlier = read_earlier_training(self.path)
        if self.only_data:
            earlier.require_new(pl_module)
        else:
            earlier.load_weights(pl_module)
            reason = earlier.load_optimizer_states(trainer.optimizers)
            self._loaded = float(not reason)
            inform(
                f"This fit begins with the weights of {self.path}; optimizers: {reason or 'with their state in it'}."
            )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._loaded is not None:
            log_now(trainer, {OPTIMIZER_STATE: self._loaded})
