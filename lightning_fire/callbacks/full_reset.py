"""Full reset: begin again."""

from collections.abc import Iterator, Mapping, Sequence

from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from lightning_fire.callbacks.base.change import new_values, write
from lightning_fire.callbacks.base.initial_values import tensors_of
from lightning_fire.callbacks.base.optimizer_state import OptimizerPolicy
from lightning_fire.callbacks.base.target import Target, TargetCallback, measurable
from lightning_fire.callbacks.probing.batches import Loss
from lightning_fire.when import Schedule
from lightning_fire.where import Parameters, WeightView


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

    def describe(self) -> str:
        return repr(self.when) if self.where is None else f"{self.when!r}, {self.where!r}"

    def show_selection(self, pl_module: LightningModule) -> str:
        if self.where is not None:
            return super().show_selection(pl_module)
        return f"FullReset acts on every parameter and buffer, {len(tensors_of(pl_module))} tensors."

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_fit_start(trainer, pl_module)
        self._selected(pl_module)  # raises before training where nothing is matched

    def views_to_show(self, pl_module: LightningModule) -> Sequence[WeightView]:
        return measurable(pl_module, self._selected(pl_module).values())

    def act(self, trainer: Trainer, pl_module: LightningModule) -> Mapping[str, float]:
        targets = self._targets_of(pl_module, set(self._selected(pl_module).values()))
        new, values = new_values(targets, self.views_to_show(pl_module), self.name)
        self.carry_out(pl_module, lambda: write(new, self.optimizer, trainer.optimizers))
        return values

    def _selected(self, pl_module: LightningModule) -> Mapping[str, Tensor]:
        return tensors_of(pl_module) if self.where is None else self.where.select(pl_module)

    def _targets_of(self, pl_module: LightningModule, chosen: set[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        targets = self.targets(pl_module)
        for name, tensor in tensors_of(pl_module).items():
            if tensor in chosen:
                yield tensor, targets[name]
