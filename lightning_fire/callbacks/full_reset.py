"""Full reset: begin again from the initial values."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from lightning.pytorch import LightningModule, Trainer
from torch import nn

from lightning_fire.callbacks.base import EventCallback
from lightning_fire.callbacks.initial_values import InitialValues, redraw, require_redrawable
from lightning_fire.callbacks.optimizer_state import OptimizerPolicy, check_policy, forget_state
from lightning_fire.callbacks.rewrite import watch
from lightning_fire.when import Schedule
from lightning_fire.where import Weights, WeightView


class FullReset(EventCallback):
    """Sets every parameter and buffer back when new data arrives.

    The initial values are those the module has when its first fit begins, before a checkpoint is loaded, the same on
    every rank; they are kept in the checkpoint. Logs the same measures as `FIRECallback`, of the weights `Weights()`
    selects, as `full_reset/…`.

    Args:
        when: Schedule, or several of which any may be due. Default: `AtNewData()`.
        target: `initial`: the values at the beginning, as in the paper. `fresh`: a new draw by each layer's
            `reset_parameters`, the same on every rank.
        seed: Seed of the new draws, with the number of the event added.
        optimizer: Whose optimizer state to drop: `keep`, `touched` or `all`.
        name: Prefix of the logged keys in the place of `full_reset`.

    Raises:
        ValueError: If an argument is out of range, or, before training, if the target is `fresh` and a layer cannot be
            drawn anew.
        MisconfigurationException: Before training, if the initial values of some layers are not known.
    """

    name = "full_reset"

    def __init__(
        self,
        when: Schedule | Sequence[Schedule] | None = None,
        target: Literal["initial", "fresh"] = "initial",
        seed: int = 0,
        optimizer: OptimizerPolicy = "touched",
        name: str | None = None,
    ):
        super().__init__(when, name)
        if target not in ("initial", "fresh"):
            raise ValueError(f"`target` must be 'initial' or 'fresh', got {target!r}")
        check_policy(optimizer)
        self.target, self.seed, self.optimizer = target, seed, optimizer
        self._initial = InitialValues()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if stage == "fit" and self.target == "initial":
            self._initial.take_before_checkpoint(pl_module)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_fit_start(trainer, pl_module)
        if self.target == "fresh":
            require_redrawable(pl_module)
        else:
            self._initial.complete(trainer, pl_module)

    def act(self, trainer: Trainer, pl_module: LightningModule) -> Mapping[str, float]:
        values = watch(_measurable(pl_module), lambda: self._reset(pl_module), self.name)
        forget_state(self.optimizer, trainer.optimizers, pl_module.parameters())
        return values

    def _reset(self, pl_module: LightningModule) -> None:
        if self.target == "fresh":
            redraw(pl_module, self.seed + self.num_events)
        else:
            self._initial.restore(pl_module)

    def state_dict(self) -> dict[str, Any]:
        """Return plain values and the initial tensors."""
        return {**super().state_dict(), "initial": self._initial.values}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        super().load_state_dict(state_dict)
        self._initial.load(state_dict["initial"])


def _measurable(module: nn.Module) -> Sequence[WeightView]:
    """Return the weights to measure; none where the module has no Linear or convolution weights of the plain kind."""
    try:
        return Weights().select(module)
    except ValueError:
        return ()
