"""Times of hooks in a training."""

import time
from functools import partial
from typing import Any

from lightning.pytorch import Callback
from machine import wait_for_device


class Stopwatch(Callback):
    """Records when Lightning calls each of some hooks; as the last callback of a Trainer, after the others.

    Args:
        hooks: Their names.

    Attributes:
        times: Seconds since some fixed time, by hook, in the order of the calls.
    """

    def __init__(self, *hooks: str):
        self.times: dict[str, list[float]] = {hook: [] for hook in hooks}
        for hook in hooks:
            setattr(self, hook, partial(self._note, hook))

    def _note(self, hook: str, *args: Any) -> None:
        wait_for_device()
        self.times[hook].append(time.perf_counter())

    def between(self, first: str, second: str) -> list[float]:
        """Return the seconds from each call of a hook to the call of another that has the same number."""
        return [end - start for start, end in zip(self.times[first], self.times[second], strict=True)]
