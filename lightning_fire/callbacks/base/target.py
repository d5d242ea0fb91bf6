"""The base of the methods that take a network back, wholly or in part, to where it began."""

from collections.abc import Iterable, Sequence
from typing import Literal

from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn

from lightning_fire.callbacks.base.event import EventCallback
from lightning_fire.callbacks.base.initial_values import WithInitialValues, fresh_values, require_redrawable
from lightning_fire.callbacks.base.optimizer_state import OptimizerPolicy, check_policy
from lightning_fire.callbacks.probing.batches import Loss
from lightning_fire.when import Schedule
from lightning_fire.where import Weights, WeightView

Target = Literal["initial", "fresh"]


class TargetCallback(WithInitialValues, EventCallback):
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
        super().__init__(when, name, curvature, loss)
        if target not in ("initial", "fresh"):
            raise ValueError(f"`target` must be 'initial' or 'fresh', got {target!r}")
        check_policy(optimizer)
        self.target, self.seed, self.optimizer = target, seed, optimizer

    @property
    def acts_on_shards(self) -> bool:
        return self.target == "initial"  # layers draw whole weights

    @property
    def wants_initial_values(self) -> bool:
        return self.target == "initial"

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_fit_start(trainer, pl_module)
        if self.target == "fresh":
            require_redrawable(pl_module)

    def why_unchanged(self) -> str:
        if self.target == "fresh":
            return super().why_unchanged()
        return (
            "they are the initial values, with which the first fit of this callback began; if that fit went on from"
            " weights trained before, use target='fresh'"
        )

    def targets(self, pl_module: LightningModule) -> dict[str, Tensor]:
        """Return the target of this event by name, of all parameters and buffers.

        Args:
            pl_module: The module; left as it is.
        """
        if self.target == "fresh":
            return fresh_values(pl_module, self.seed + self.num_events)
        return self.initial.values


def measurable(module: nn.Module, touched: Iterable[Tensor] | None = None) -> Sequence[WeightView]:
    """Return the weights to measure; none where there are no Linear or convolution weights of the plain kind.

    Args:
        module: The module.
        touched: Those of its parameters to choose from. Default: all.
    """
    touched = set(module.parameters() if touched is None else touched)
    try:
        return [view for view in Weights().select(module) if view.parameter in touched]
    except ValueError:
        return ()
