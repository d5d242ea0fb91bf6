"""FIRE as a callback: Frobenius-isometry reinitialization (ICLR 2026)."""

from collections.abc import Sequence
from typing import Any

from lightning_fire.callbacks.log import Log
from lightning_fire.callbacks.plasticity_callback import PlasticityCallback
from lightning_fire.methods import FIRE
from lightning_fire.when import Schedule


class FIRECallback(PlasticityCallback):
    """Replaces selected weights by the nearest orthogonal ones when new data arrives: `PlasticityCallback(FIRE(…))`.

    Args:
        when: Schedule, or several of which any may be due. Default: `AtNewData()`, the start of every chunk but the
            first.
        log: What to log. Default: `Log()`.
        options: Arguments of `methods.FIRE`.

    Raises:
        ValueError: If an argument is out of range, or, before training, if `where` matches no weight.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> trainer = Trainer(callbacks=[FIRECallback(steps=5)], logger=False, enable_checkpointing=False)
    """

    def __init__(self, when: Schedule | Sequence[Schedule] | None = None, log: Log | None = None, **options: Any):
        super().__init__(FIRE(**options), when, log=log)
