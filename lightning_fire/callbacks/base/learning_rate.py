"""Warning if the learning rate stays near 0 after an event."""

from lightning.pytorch import Trainer

from lightning_fire.messages import rank_zero_warn

_STEPS = 100  # steps to wait for the end of a warm-up
_NEAR_0 = 0.01  # fraction of the initial learning rate; of a cycle, of the highest


class RateAfterEvent:
    """Watches the learning rates after an event, until the epoch ends and for at most 100 steps.

    A schedule over the whole training is near its end when the last data arrives: the network cannot recover from a
    reset then.
    """

    def __init__(self, trainer: Trainer, name: str, epoch: int, step: int):
        self._name, self._epoch, self._step = name, epoch, step
        self._highest = _fraction_of_initial(trainer)

    def is_judged(self, trainer: Trainer, epoch: int, step: int) -> bool:
        """Read the rates before a batch or after the last one; warn if they stayed near 0; return whether finished."""
        if epoch == self._epoch and step < self._step + _STEPS:
            self._highest = max(self._highest, _fraction_of_initial(trainer))
            return False
        if self._highest < _NEAR_0 and step > self._step:
            rank_zero_warn(
                f"{self._name} acted at epoch {self._epoch}, step {self._step}, and the learning rate has since been"
                f" at most {self._highest:.2g} of its initial value: the network cannot learn again what the event has"
                " changed. RestartSchedulers() restarts the schedule at new data."
            )
        return True


def _fraction_of_initial(trainer: Trainer) -> float:
    """Return the largest learning rate as a fraction of the initial one of its parameter group."""
    fractions = []
    for group in (group for optimizer in trainer.optimizers for group in optimizer.param_groups):
        initial = max(float(group.get(key, group["lr"])) for key in ("initial_lr", "max_lr"))
        fractions.append(float(group["lr"]) / initial if initial else 1.0)
    return max(fractions, default=1.0)
