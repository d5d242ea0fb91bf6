"""Optimizer reset: part of the paper's protocol, for every method."""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from lightning_fire.methods.base.change import Change
from lightning_fire.methods.base.loop import Loop
from lightning_fire.methods.base.method import EventMethod
from lightning_fire.methods.base.report import Report


@dataclass(frozen=True)
class OptimizerReset(EventMethod):
    """Drops the state of all optimizers (moments, step counts).

    The paper's vision and language experiments build a new optimizer at each chunk for every method, vanilla included.
    Learning-rate schedulers continue; `Classifier` warms up the learning rate in each chunk.

    Raises:
        ValueError: In an event without an optimizer, which would change nothing.
    """

    name: ClassVar[str] = "optimizer_reset"
    acts_on_shards = True
    optimizer_state = "all"
    changes_weights: ClassVar[bool] = False
    changes_output: ClassVar[bool] = False

    def plan(self, model: nn.Module, training: Loop) -> Change:
        """Change no weight; the policy `all` drops the state."""
        if not training.optimizers:
            raise ValueError("OptimizerReset has no optimizer to reset: give it Loop(optimizers=…)")
        return Change(report=Report())
