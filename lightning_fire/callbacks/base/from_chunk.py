"""Base class of methods that act at each step, from a given change of the data on."""

import math

from lightning_fire.callbacks.base.method import MethodCallback
from lightning_fire.when import Horizon
from lightning_fire.where import HiddenUnits, Parameters, Weights


class FromChunkCallback(MethodCallback):
    """Does nothing before the data has changed `start_chunk` times.

    A method subclasses it, sets `where`, and asks `acts_now`.

    Args:
        start_chunk: Number of changes, at least 0.

    Raises:
        ValueError: If `start_chunk` is below 0.
    """

    where: HiddenUnits | Parameters | Weights

    def __init__(self, start_chunk: int):
        super().__init__()
        check_start_chunk(start_chunk)
        self.start_chunk = start_chunk

    @property
    def acts_now(self) -> bool:
        """True once the data has changed `start_chunk` times."""
        return self.chunk >= self.start_chunk

    def idle_epochs(self, horizon: Horizon) -> float:
        return math.inf if self.start_chunk >= 1 else 0

    def describe(self) -> str:
        return f"start_chunk={self.start_chunk}, {self.where!r}"


def check_start_chunk(start_chunk: int) -> None:
    """Raise a ValueError if the number is out of range."""
    if start_chunk < 0:
        raise ValueError(f"`start_chunk` must be at least 0, got {start_chunk}")
