"""Base class of methods that reset a model to its initial values or to new random values."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from torch import Tensor, nn

from lightning_fire.methods.base.method import EventMethod
from lightning_fire.methods.base.selecting import trained_tensors
from lightning_fire.methods.base.training import Training
from lightning_fire.methods.initial_values import check_resettable, drawn_values, initial_of
from lightning_fire.where.trained import leaves_out


class ResetMethod(EventMethod):
    """Base class of methods with a target: the initial values, or with `fresh_seed` new random values."""

    measures_curvature: ClassVar[bool] = True
    fresh_seed: int | None

    @property
    def acts_on_shards(self) -> bool:
        """Whether it can act on sharded weights: not if layers draw new values, which are whole tensors."""
        return self.fresh_seed is None

    needs_initial_values = acts_on_shards

    def check(self, model: nn.Module) -> Sequence[str]:
        """Check that something is selected and, with `fresh_seed`, that its layers can draw it."""
        tensors, untrained = trained_tensors(model, self.selection)
        if self.fresh_seed is not None:
            check_resettable(model, tensors.values())
        return leaves_out(untrained) if self.selection is None else super().check(model)

    def target_values(self, model: nn.Module, training: Training) -> Mapping[str, Tensor]:
        """Return the values to reset to at this event, by name."""
        if self.fresh_seed is None:
            return initial_of(model, training)
        check_resettable(model, trained_tensors(model, self.selection)[0].values())
        return drawn_values(model, self.fresh_seed + training.event)
