"""Full reset: begin again."""

from collections.abc import Mapping, Sequence

import torch
from lightning.pytorch import LightningModule, Trainer

from lightning_fire.callbacks.initial_values import tensors_of
from lightning_fire.callbacks.optimizer_state import forget_state
from lightning_fire.callbacks.rewrite import watch
from lightning_fire.callbacks.target import TargetCallback, measurable
from lightning_fire.where import WeightView, put


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

    Raises:
        ValueError: If an argument is out of range, or, before training, if the target is `fresh` and a layer cannot be
            drawn anew.
        MisconfigurationException: Before training, if the initial values of some layers are not known.
    """

    name = "full_reset"

    def show_selection(self, pl_module: LightningModule) -> str:
        return f"FullReset acts on every parameter and buffer, {len(tensors_of(pl_module))} tensors."

    def views_to_show(self, pl_module: LightningModule) -> Sequence[WeightView]:
        return measurable(pl_module)

    def act(self, trainer: Trainer, pl_module: LightningModule) -> Mapping[str, float]:
        values = watch(measurable(pl_module), lambda: self._reset(pl_module), self.name)
        forget_state(self.optimizer, trainer.optimizers, pl_module.parameters())
        return values

    @torch.no_grad()
    def _reset(self, pl_module: LightningModule) -> None:
        targets = self.targets(pl_module)
        for name, tensor in tensors_of(pl_module).items():
            put(tensor, targets[name])
