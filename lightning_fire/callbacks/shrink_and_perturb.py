"""Shrink and perturb as a callback (Ash & Adams, NeurIPS 2020)."""

from collections.abc import Sequence

import torch
from lightning.pytorch import LightningModule, Trainer

from lightning_fire.callbacks.base.event import EventCallback
from lightning_fire.callbacks.base.event_log import Log
from lightning_fire.functional import shrink_and_perturb
from lightning_fire.methods.base.change import Change
from lightning_fire.methods.base.optimizer_state import OptimizerPolicy, check_policy
from lightning_fire.methods.shrink_and_perturb import plan_shrink_and_perturb
from lightning_fire.when import Schedule
from lightning_fire.where import Parameters
from lightning_fire.where.argument import checked


class ShrinkAndPerturb(EventCallback):
    """Moves parameters towards their initial values, or towards new random values, when new data arrives.

    θ ← (1 − λ)·θ + λ·θ₀ for every trainable parameter, with norm scales and biases, not buffers. Logs the same metrics
    as `FIRECallback`, of the weights that `Weights()` selects, as `shrink_and_perturb/…`.

    Args:
        when: Schedule, or several of which any may be due. Default: `AtNewData()`. Some other
            papers: `EveryNSteps(1)`, with a tiny `strength`.
        strength: λ in [0, 1] (paper: 0.8 in all vision experiments).
        perturb: Factor of the target instead of λ. Ash & Adams: `strength=0.6, perturb=0.1, fresh_seed=0`.
        where: The parameters to act on. Default: `Parameters()`, all.
        fresh_seed: Seed of new values by each layer's `reset_parameters`, to which the number of the event is added;
            the same on every rank. Default: the target is the values of the module at the start of its first fit,
            before a checkpoint is loaded, the same on every rank, as in the paper; the checkpoint keeps them.
        optimizer: Whose optimizer state to drop: `keep`, `touched` or `all`.
        log: What to log. Default: `Log()`.

    Raises:
        ValueError: If an argument is out of range; before training, if `where` matches no parameter, or with
            `fresh_seed` a layer has no `reset_parameters`; at an event, if a parameter has a NaN or Inf, which it would
            keep: nothing has been changed then.
        MisconfigurationException: Before training, if the initial values of some layers are not known.
    """

    acts_on_shards = logs_curvature = True
    name = "shrink_and_perturb"

    def __init__(
        self,
        when: Schedule | Sequence[Schedule] | None = None,
        strength: float = 0.8,
        perturb: float | None = None,
        where: Parameters | None = None,
        fresh_seed: int | None = None,
        optimizer: OptimizerPolicy = "touched",
        log: Log | None = None,
    ):
        super().__init__(when, log)
        check_policy(optimizer)
        shrink_and_perturb(torch.zeros(1), torch.zeros(1), strength, perturb)  # raises if out of range
        self.strength, self.perturb, self.optimizer = strength, perturb, optimizer
        self.where = checked(where, Parameters())
        self.aim_at(fresh_seed)

    def plan(self, trainer: Trainer, pl_module: LightningModule) -> Change:
        return plan_shrink_and_perturb(
            pl_module,
            self.target(pl_module),
            self.strength,
            self.perturb,
            self.where,
            optimizers=trainer.optimizers,
            optimizer_state=self.optimizer,
            measure=self.logs.weights,
        )
