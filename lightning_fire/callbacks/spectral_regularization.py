"""Spectral regularization as a callback: it pulls largest singular values to 1 (Lewandowski et al., ICLR 2025)."""

from typing import Any

from lightning.pytorch import LightningModule
from torch import Tensor

from lightning_fire import methods
from lightning_fire.callbacks.base.penalty import PenaltyCallback
from lightning_fire.where import Weights
from lightning_fire.where.argument import checked


class SpectralRegularization(PenaltyCallback):
    """Adds λ·Σ ((σ₁(W)² − 1)² + ‖b‖⁴) to the loss, over the selected weights W and the biases b of their layers.

    Logs `spectral/penalty`, λ included, at the end of each epoch in which it acts.

    Args:
        strength: λ, the factor of the penalty.
        start_chunk: Number of changes of the data before which it does nothing.
        where: The weights to act on. Default: `Weights(preset="cnn", vectors=True)`, every Linear and
            convolution weight.

    Raises:
        ValueError: If an argument is out of range, or, before training, if `where` matches no weight.
    """

    name = "spectral"

    def __init__(self, strength: float, start_chunk: int = 0, where: Weights | None = None):
        super().__init__(strength, start_chunk)
        self.where = checked(where, Weights(preset="cnn", vectors=True))
        self.vectors: dict[str, Tensor] = {}  # estimates of singular vectors, which the method updates

    def show_selection(self, pl_module: LightningModule) -> str:
        return super().show_selection(pl_module) + "\nand the biases of their layers"

    def make(self, pl_module: LightningModule) -> methods.SpectralRegularization:
        return methods.SpectralRegularization(pl_module, self.strength, self.where, self.vectors)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "vectors": dict(self.vectors)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.vectors = dict(state_dict["vectors"])
