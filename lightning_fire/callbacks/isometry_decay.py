"""Isometry decay as a callback: a decoupled pull towards isometries, the O of AdamO (Rosseau et al., ICML 2026)."""

from lightning.pytorch import LightningModule, Trainer
from torch.optim import Optimizer

from lightning_fire import methods
from lightning_fire.callbacks.base.penalty import PenaltyCallback
from lightning_fire.where import Weights
from lightning_fire.where.argument import checked


class IsometryDecay(PenaltyCallback):
    """Moves the selected weights towards isometries at each optimizer step: W ← W − lr·λ·4(WWᵀ − I)W.

    Combined with Adam it is AdamO: the moments use only the gradient of the loss. Logs `isometry_decay/penalty`,
    λ·Σ ‖WWᵀ − I‖_F², at the end of each epoch in which it acts.

    Args:
        strength: λ (paper: 1e-3, with a learning rate of 1e-4).
        start_chunk: Number of changes of the data before which it does nothing.
        where: The weights to act on. Default: `Weights(preset="cnn", vectors=True)`, every Linear and
            convolution weight.

    Raises:
        ValueError: If an argument is out of range, or, before training, if `where` matches no weight.
    """

    name = "isometry_decay"

    def __init__(self, strength: float, start_chunk: int = 0, where: Weights | None = None):
        super().__init__(strength, start_chunk)
        self.where = checked(where, Weights(preset="cnn", vectors=True))

    def make(self, pl_module: LightningModule) -> methods.IsometryDecay:
        return methods.IsometryDecay(pl_module, self.strength, self.where)

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        if self.acts_now:
            self._method.decay(optimizer)
