"""Parseval regularization as a callback: a pull towards orthogonal rows (Chung et al., NeurIPS 2024)."""

from lightning.pytorch import LightningModule

from lightning_fire import methods
from lightning_fire.callbacks.base.penalty import PenaltyCallback
from lightning_fire.where import Weights
from lightning_fire.where.argument import checked


class Parseval(PenaltyCallback):
    """Adds λ·Σ ‖WWᵀ − s·I‖_F² to the loss, over the selected weights.

    Logs `parseval/penalty`, λ included, at the end of each epoch in which it acts.

    Args:
        strength: λ, the factor of the penalty.
        scale: s: the squared singular value that the rows are pulled to. Paper: 1. The method's authors: 2.
        start_chunk: Number of changes of the data before which it does nothing (paper, warm start: 1).
        where: The weights to act on. Default: `Weights(preset="cnn", vectors=True)`, every Linear and
            convolution weight.
        norms: Also pull the scales γ of normalisation layers to ±1, by λ·Σ (γ² − 1)², as the authors of the FIRE paper
            do in their code.

    Raises:
        ValueError: If an argument is out of range, or, before training, if `where` matches no weight.
    """

    name = "parseval"

    def __init__(
        self,
        strength: float,
        scale: float = 1.0,
        start_chunk: int = 0,
        where: Weights | None = None,
        norms: bool = False,
    ):
        super().__init__(strength, start_chunk)
        if not scale > 0:
            raise ValueError(f"`scale` must be above 0, got {scale}")
        self.scale, self.norms = scale, norms
        self.where = checked(where, Weights(preset="cnn", vectors=True))

    def show_selection(self, pl_module: LightningModule) -> str:
        scales = "\nand the scales of normalisation layers" if self.norms else ""
        return super().show_selection(pl_module) + scales

    def make(self, pl_module: LightningModule) -> methods.Parseval:
        return methods.Parseval(pl_module, self.strength, self.scale, self.where, self.norms)
