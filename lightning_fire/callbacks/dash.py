"""DASH as a callback: direction-aware shrinking (Shin et al., NeurIPS 2024)."""

import math
from collections.abc import Sequence
from functools import partial

import torch
from lightning.pytorch import LightningModule, Trainer

from lightning_fire.callbacks.base.event import EventCallback
from lightning_fire.callbacks.base.event_log import Log
from lightning_fire.callbacks.probing.batches import gradients_on_new_data
from lightning_fire.functional import dash
from lightning_fire.methods.base.change import Change
from lightning_fire.methods.base.optimizer_state import OptimizerPolicy, check_policy
from lightning_fire.methods.dash import plan_dash
from lightning_fire.when import Schedule
from lightning_fire.where import Weights
from lightning_fire.where.argument import checked

_NEGLIGIBLE = 1e-4


class DASH(EventCallback):
    """Shrinks, when new data arrives, the weights that are not aligned with the negative gradient on it.

    The direction g of each weight is the exponential moving average (EMA) of its negative gradients on batches of new
    data, g ← (1 − α)·g + α·(−∇). Then w ← w · clamp(cos(w, g), λ, 1), for each kernel of a convolution, each row of a
    matrix and each bias. Nothing else changes: normalisation layers keep their statistics, and training gets the same
    batches again. Logs the same metrics as `FIRECallback` as `dash/…`, and `dash/batches`.

    Args:
        when: Schedule, or several of which any may be due. Default: `AtNewData()`.
        alpha: α in (0, 1] (paper: tuned, 0.1 or 0.3).
        minimum: λ in [0, 1], the smallest fraction of a weight that is kept (paper: tuned, 0.05 to 0.3).
        num_batches: Number of batches of new data, at most one epoch. Default: so many that earlier batches would have
            less than 1e-4 of the weight in the average, 26 for α = 0.3 and 88 for α = 0.1.
        where: The weights to shrink; their biases go with them. Default:
            `Weights(preset="cnn", vectors=True)`, every Linear and convolution weight.
        optimizer: Whose optimizer state to drop: `keep`, `touched` or `all`.
        log: What to log. Default: `Log()`.

    Raises:
        ValueError: If an argument is out of range; before training, if `where` matches no weight; at an event, if a
            weight or a gradient has a NaN or Inf: nothing has been changed then.
        MisconfigurationException: At an event, if the module optimizes manually and has no `loss_on`.
    """

    logs_curvature = True
    name = "dash"

    def __init__(
        self,
        when: Schedule | Sequence[Schedule] | None = None,
        alpha: float = 0.3,
        minimum: float = 0.3,
        num_batches: int | None = None,
        where: Weights | None = None,
        optimizer: OptimizerPolicy = "touched",
        log: Log | None = None,
    ):
        super().__init__(when, log)
        if not 0 < alpha <= 1:
            raise ValueError(f"`alpha` must be in (0, 1], got {alpha}")
        if num_batches is not None and num_batches < 1:
            raise ValueError(f"`num_batches` must be at least 1, got {num_batches}")
        dash(torch.zeros(1), torch.zeros(1), minimum)  # raises if out of range
        check_policy(optimizer)
        self.alpha, self.minimum, self.optimizer = alpha, minimum, optimizer
        self.num_batches = num_batches or (1 if alpha == 1 else math.ceil(math.log(_NEGLIGIBLE) / math.log(1 - alpha)))
        self.where = checked(where, Weights(preset="cnn", vectors=True))

    def plan(self, trainer: Trainer, pl_module: LightningModule) -> Change:
        gradients = partial(gradients_on_new_data, trainer, pl_module, num_batches=self.num_batches)
        return plan_dash(
            pl_module,
            gradients,
            self.alpha,
            self.minimum,
            self.where,
            optimizers=trainer.optimizers,
            optimizer_state=self.optimizer,
            measure=self.logs.weights,
        )
