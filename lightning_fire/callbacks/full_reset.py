"""Full reset as a callback."""

from collections.abc import Sequence
from typing import Literal

from lightning.pytorch import LightningModule, Trainer

from lightning_fire.callbacks.base.event import EventCallback
from lightning_fire.callbacks.base.event_log import Log
from lightning_fire.methods.base.change import Change
from lightning_fire.methods.base.optimizer_state import OptimizerPolicy, check_policy
from lightning_fire.methods.base.selecting import trained_tensors
from lightning_fire.methods.full_reset import isometric_values, plan_full_reset
from lightning_fire.when import Schedule
from lightning_fire.where import Parameters
from lightning_fire.where.argument import checked


class FullReset(EventCallback):
    """Resets every parameter and buffer when new data arrives, except what is frozen or trained by no optimizer.

    Logs the same metrics as `FIRECallback`, of the weights that `Weights()` selects, as `full_reset/…`.

    Other methods raise an error on weights with a NaN or Inf. This one restores a network that has diverged, except
    with `optimizer="keep"`, as the moments of the optimizer have diverged too.

    Args:
        when: Schedule, or several of which any may be due. Default: `AtNewData()`.
        fresh_seed: Seed of new values by each layer's `reset_parameters`, to which the number of the event is added;
            the same on every rank. Default: the target is the values of the module at the start of its first fit,
            before a checkpoint is loaded, the same on every rank, as in the paper; the checkpoint keeps them.
        optimizer: Whose optimizer state to drop: `keep`, `touched` or `all`.
        where: The parameters to reset, such as those of a head. Default: every parameter and buffer.
        target: `initial`, or `isometry`: the weights that FIRE would replace become the nearest isometries of their
            initial values, with the paper's scale: a control for FIRE that ignores the trained weights.
        log: What to log. Default: `Log()`.

    Raises:
        ValueError: If an argument is out of range; before training, if `where` matches no parameter, or with
            `fresh_seed` a layer has no `reset_parameters`.
        MisconfigurationException: Before training, if the initial values of some layers are not known.
    """

    acts_on_shards = logs_curvature = True
    name = "full_reset"

    def __init__(
        self,
        when: Schedule | Sequence[Schedule] | None = None,
        fresh_seed: int | None = None,
        optimizer: OptimizerPolicy = "touched",
        where: Parameters | None = None,
        target: Literal["initial", "isometry"] = "initial",
        log: Log | None = None,
    ):
        super().__init__(when, log)
        check_policy(optimizer)
        if target not in ("initial", "isometry"):
            raise ValueError(f"`target` must be 'initial' or 'isometry', got {target!r}")
        self.where = None if where is None else checked(where, Parameters())
        self.optimizer, self.isometric = optimizer, target == "isometry"
        self.aim_at(fresh_seed)

    def show_selection(self, pl_module: LightningModule) -> str:
        if self.where is not None:
            return super().show_selection(pl_module)
        return f"FullReset acts on every parameter and buffer, {len(trained_tensors(pl_module)[0])} tensors."

    def untrained(self, pl_module: LightningModule) -> Sequence[str]:
        return super().untrained(pl_module) if self.where is not None else trained_tensors(pl_module)[1]

    def plan(self, trainer: Trainer, pl_module: LightningModule) -> Change:
        values = self.target(pl_module)
        return plan_full_reset(
            pl_module,
            isometric_values(pl_module, values) if self.isometric else values,
            self.where,
            optimizers=trainer.optimizers,
            optimizer_state=self.optimizer,
            measure=self.logs.weights,
        )
