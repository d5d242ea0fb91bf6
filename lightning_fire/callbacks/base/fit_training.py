"""What the fit of a Lightning Trainer lends a method."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from lightning_fire._lightning import undeclared
from lightning_fire.callbacks.base.event import EventCallback
from lightning_fire.callbacks.probing.batches import BatchInHand
from lightning_fire.methods.base.averages import averages_in


class FitTraining:
    """The `methods.Training` of a fit: the Trainer's optimizers, the batch in hand, and the next ones.

    Args:
        given: The batch in hand.
        callback: The `EventCallback` that acts, with the number of its event and the initial values.
    """

    def __init__(self, given: BatchInHand, callback: EventCallback):
        self._given, self._callback = given, callback

    @property
    def optimizers(self) -> Sequence[Any]:
        """Those of the Trainer, also after they have been replaced."""
        return self._given.trainer.optimizers

    @property
    def paused(self) -> Sequence[Tensor]:
        """Parameters that are trained, and frozen between batches."""
        return self._callback.paused_parameters(self._given.module)

    @property
    def averages(self) -> Sequence[Any]:
        """Those that other callbacks keep."""
        return averages_in(undeclared(self._given.trainer).callbacks)

    @property
    def event(self) -> int:
        """Number of the present event, from 1."""
        return self._callback.num_events + 1

    @property
    def measure(self) -> bool:
        """Whether the weights are logged."""
        return self._callback.logs.weights

    @property
    def ranks(self) -> int:
        """Those of the Trainer: it may train on its own in a process group of independent trainings."""
        return self._given.trainer.world_size

    @property
    def share_work(self) -> bool:
        """Whether the Trainer has several ranks."""
        return self.ranks > 1

    def initial(self) -> Mapping[str, Tensor]:
        """Return the values of the module at the start of its first fit."""
        kept = self._callback.initial
        assert kept is not None and kept.values is not None  # complete since the start of the fit
        return kept.values

    def forward(self, batches: int = 1) -> None:
        """Run the module on the batch in hand, then on the next ones."""
        self._given.forward(batches)

    def gradients(self, of: Sequence[Tensor], batches: int) -> Iterator[list[Tensor]]:
        """Yield the gradients of the loss on the batch in hand, then on the next ones, each rank on its own."""
        return self._given.gradients(of, batches)
