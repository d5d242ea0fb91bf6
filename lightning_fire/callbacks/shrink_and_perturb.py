"""Shrink and perturb as a callback (Ash & Adams, NeurIPS 2020)."""

from collections.abc import Sequence

import torch
from lightning.pytorch import LightningModule, Trainer

from lightning_fire.callbacks.base.target import Target, TargetCallback
from lightning_fire.callbacks.probing.batches import Loss
from lightning_fire.functional import shrink_and_perturb
from lightning_fire.methods.change import Change
from lightning_fire.methods.optimizer_state import OptimizerPolicy
from lightning_fire.methods.shrink_and_perturb import plan_shrink_and_perturb
from lightning_fire.when import Schedule
from lightning_fire.where import Parameters


class ShrinkAndPerturb(TargetCallback):
    """Moves parameters towards their initial values, or towards a new draw, when new data arrives.

    θ ← (1 − λ)·θ + λ·θ₀ for every trainable parameter, norm scales and biases among them; buffers stay. Logs the same
    measures as `FIRECallback`, of the weights `Weights()` selects, as `shrink_and_perturb/…`.

    Args:
        when: Schedule, or several of which any may be due. Default: `AtNewData()`. `EveryNSteps(1)`, with a tiny
            `strength`, is how some other papers use it.
        strength: λ in [0, 1] (paper: 0.8 in all vision experiments).
        perturb: Factor of the target in the place of λ. Ash & Adams: `strength=0.6, perturb=0.1, target="fresh"`.
        where: The parameters to act on. Default: `Parameters()`, all.
        target: `initial`: the values that the module has when its first fit begins, before a checkpoint is loaded, the
            same on every rank, as in the paper; they are kept in the checkpoint. `fresh`: a new draw by each layer's
            `reset_parameters`, the same on every rank.
        seed: Seed of the new draws, with the number of the event added.
        optimizer: Whose optimizer state to drop: `keep`, `touched` or `all`.
        log_measures: Measure what each event does. Costs a copy of the weights and some matrix products: switch it off
            where events come every few steps; only `shrink_and_perturb/event` is logged then.
        curvature: Log λ_max, as `FIRECallback` does; only together with `log_measures`.
        loss: From the module and a batch to the loss of which λ_max is, a scalar. Default: what `training_step`
            returns, of automatic optimization; what it logs is dropped.
        name: Prefix of the logged keys in the place of `shrink_and_perturb`.

    Raises:
        ValueError: If an argument is out of range; before training, if `where` matches no parameter, or the target is
            `fresh` and a layer cannot be drawn anew; at an event, if a parameter has a NaN or Inf, which it would keep:
            nothing has been changed then.
        MisconfigurationException: Before training, if the initial values of some layers are not known.
    """

    name = "shrink_and_perturb"

    def __init__(
        self,
        when: Schedule | Sequence[Schedule] | None = None,
        strength: float = 0.8,
        perturb: float | None = None,
        where: Parameters | None = None,
        target: Target = "initial",
        seed: int = 0,
        optimizer: OptimizerPolicy = "touched",
        log_measures: bool = True,
        curvature: bool = True,
        loss: Loss | None = None,
        name: str | None = None,
    ):
        super().__init__(when, target, seed, optimizer, name, curvature and log_measures, loss)
        shrink_and_perturb(torch.zeros(1), torch.zeros(1), strength, perturb)  # refuses what is out of range
        self.strength, self.perturb = strength, perturb
        self.where = where if where is not None else Parameters()
        self.log_measures = log_measures

    def plan(self, trainer: Trainer, pl_module: LightningModule) -> Change:
        how = self.strength, self.perturb, self.where
        return plan_shrink_and_perturb(
            pl_module, self.targets(pl_module), *how, trainer.optimizers, self.optimizer, self.log_measures
        )
