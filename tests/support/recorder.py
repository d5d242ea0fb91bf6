"""A callback with events that change nothing: it notes when they are."""

from dataclasses import dataclass

from lightning_fire import Change, EventMethod, PlasticityCallback


@dataclass(frozen=True)
class Nothing(EventMethod):
    """Changes nothing."""

    name = "recorder"
    changes_weights = changes_output = False

    def plan(self, model, training):
        return Change()


class Recorder(PlasticityCallback):
    """Records the epochs and steps at which it acts, and on how much data."""

    def __init__(self, when=None, log=None):
        super().__init__(Nothing(), when, log=log)
        self.acted_at = []

    def act(self, trainer, pl_module, clock):
        values = super().act(trainer, pl_module, clock)
        self.acted_at.append((clock.epoch, clock.step))
        self.batches_ahead = trainer.num_training_batches
        return values
