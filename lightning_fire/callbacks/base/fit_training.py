"""The `methods.Training` of a fit of a Lightning Trainer."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from lightning_fire._lightning import undeclared
from lightning_fire.callbacks.base.event import EventCallback
from lightning_fire.callbacks.probing.batches import BatchInHand
from lightning_fire.methods.base.averages import averages_in


class FitTraining:
    """The `methods.Training` of a fit: the Trainer's optimizers, the batch in hand, and the next ones.

    Its ranks are those of the Trainer, which may train on its own in a process group of independent trainings.
    """

    def __init__(self, given: BatchInHand, callback: EventCallback):
        self._trainer, self._initial = given.trainer, callback.initial
        self.paused = callback.paused_parameters(given.module)
        self.averages = averages_in(undeclared(given.trainer).callbacks)
        self.event, self.measure = callback.num_events + 1, callback.logs.weights
        self.ranks = given.trainer.world_size
        self.share_work = self.ranks > 1
        self.forward, self.gradients = given.forward, given.gradients

    @property
    def optimizers(self) -> Sequence[Any]:
        """Those of the Trainer, also after they have been replaced."""
        return self._trainer.optimizers

    def initial(self) -> Mapping[str, Tensor]:
        """Return the values of the module at the start of its first fit."""
        assert self._initial is not None and self._initial.values is not None  # complete since the start of the fit
        return self._initial.values
