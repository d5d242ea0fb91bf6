"""A callback with events that do nothing but note when they are."""

from lightning_fire.callbacks.base.event import EventCallback


class Recorder(EventCallback):
    """Records the epochs and steps at which it acts, and on how much data."""

    name = "recorder"

    def __init__(self, when=None, log=None):
        super().__init__(when, log)
        self.acted_at = []

    def at(self, trainer, pl_module, clock):
        number = self.num_events
        super().at(trainer, pl_module, clock)
        if self.num_events > number:
            self.acted_at.append((clock.epoch, clock.step))
            self.batches_ahead = trainer.num_training_batches

    def act(self, trainer, pl_module):
        return {}
