"""The base of the methods that take a network back, wholly or in part, to where it began."""

from collections.abc import Mapping, Sequence
from typing import Literal

from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from lightning_fire.callbacks.base.event import EventCallback
from lightning_fire.callbacks.base.initial_values import KeptInitialValues, require_resettable
from lightning_fire.callbacks.probing.batches import Loss
from lightning_fire.methods.initial_values import fresh_values
from lightning_fire.methods.optimizer_state import OptimizerPolicy, check_policy
from lightning_fire.when import Schedule

Target = Literal["initial", "fresh"]


class TargetCallback(EventCallback):
    """Knows the target of each event: the initial values, or a new draw.

    Args:
        when: Schedule, or several of which any may be due. Default: `AtNewData()`.
        target: `initial`: the values that the module has when its first fit begins, before a checkpoint is loaded, the
            same on every rank; they are kept in the checkpoint. `fresh`: a new draw by each layer's
            `reset_parameters`, the same on every rank.
        seed: Seed of the new draws, with the number of the event added.
        optimizer: Whose optimizer state to drop: `keep`, `touched` or `all`.
        name: Prefix of the logged keys in the place of the class's.
        curvature: Log λ_max, as `FIRECallback` does.
        loss: From the module and a batch to the loss of which λ_max is. Default: as `EventCallback`.

    Raises:
        ValueError: If an argument is out of range, or, before training, if the target is `fresh` and a layer cannot be
            drawn anew.
        MisconfigurationException: Before training, if the initial values of some layers are not known.
    """

    def __init__(
        self,
        when: Schedule | Sequence[Schedule] | None = None,
        target: Target = "initial",
        seed: int = 0,
        optimizer: OptimizerPolicy = "touched",
        name: str | None = None,
        curvature: bool = True,
        loss: Loss | None = None,
    ):
        super().__init__(when, name, curvature=curvature, loss=loss)
        if target not in ("initial", "fresh"):
            raise ValueError(f"`target` must be 'initial' or 'fresh', got {target!r}")
        check_policy(optimizer)
        self.target, self.seed, self.optimizer = target, seed, optimizer
        self.initial = KeptInitialValues() if target == "initial" else None

    @property
    def acts_on_shards(self) -> bool:
        return self.target == "initial"  # layers draw whole weights

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_fit_start(trainer, pl_module)
        if self.target == "fresh":
            require_resettable(pl_module)

    def why_unchanged(self) -> str:
        if self.target == "fresh":
            return super().why_unchanged()
        return (
            "they are the initial values, with which the first fit of this callback began; if that fit went on from"
            " weights trained before, use target='fresh'"
        )

    def targets(self, pl_module: LightningModule) -> Mapping[str, Tensor]:
        """Return the target of this event by name, of all parameters and buffers.

        Args:
            pl_module: The module; left as it is.
        """
        if self.initial is None:
            return fresh_values(pl_module, self.seed + self.num_events)
        return self.initial.values or {}
