"""Full reset as a callback."""

from collections.abc import Sequence

from lightning.pytorch import LightningModule, Trainer

from lightning_fire.callbacks.base.target import Target, TargetCallback
from lightning_fire.callbacks.probing.batches import Loss
from lightning_fire.methods.change import Change
from lightning_fire.methods.full_reset import plan_full_reset
from lightning_fire.methods.initial_values import tensors_of
from lightning_fire.methods.optimizer_state import OptimizerPolicy
from lightning_fire.when import Schedule
from lightning_fire.where import Parameters


class FullReset(TargetCallback):
    """Sets every parameter and buffer back when new data arrives.

    Logs the same measures as `FIRECallback`, of the weights `Weights()` selects, as `full_reset/…`.

    Where the methods that keep something refuse weights with a NaN or Inf, this one heals a network that has diverged;
    not with `optimizer="keep"`, as the moments of the optimizer have diverged with it.

    Args:
        when: Schedule, or several of which any may be due. Default: `AtNewData()`.
        target: `initial`: the values that the module has when its first fit begins, before a checkpoint is loaded, the
            same on every rank, as in the paper; they are kept in the checkpoint. `fresh`: a new draw by each layer's
            `reset_parameters`, the same on every rank.
        seed: Seed of the new draws, with the number of the event added.
        optimizer: Whose optimizer state to drop: `keep`, `touched` or `all`.
        name: Prefix of the logged keys in the place of `full_reset`.
        curvature: Log λ_max, as `FIRECallback` does.
        loss: From the module and a batch to the loss of which λ_max is, a scalar. Default: what `training_step`
            returns, of automatic optimization; what it logs is dropped.
        where: The parameters to set back, such as those of a head. Default: every parameter and buffer.

    Raises:
        ValueError: If an argument is out of range; before training, if `where` matches no parameter, or the target is
            `fresh` and a layer cannot be drawn anew.
        MisconfigurationException: Before training, if the initial values of some layers are not known.
    """

    name = "full_reset"

    def __init__(
        self,
        when: Schedule | Sequence[Schedule] | None = None,
        target: Target = "initial",
        seed: int = 0,
        optimizer: OptimizerPolicy = "touched",
        name: str | None = None,
        curvature: bool = True,
        loss: Loss | None = None,
        where: Parameters | None = None,
    ):
        super().__init__(when, target, seed, optimizer, name, curvature, loss)
        self.where = where

    def show_selection(self, pl_module: LightningModule) -> str:
        if self.where is not None:
            return super().show_selection(pl_module)
        return f"FullReset acts on every parameter and buffer, {len(tensors_of(pl_module))} tensors."

    def plan(self, trainer: Trainer, pl_module: LightningModule) -> Change:
        return plan_full_reset(pl_module, self.targets(pl_module), self.where, trainer.optimizers, self.optimizer)
