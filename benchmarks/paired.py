"""Paired timing: what is compared runs in turn, so that a slow spell of the machine falls on all of it."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from machine import wait_for_device

T = TypeVar("T")


def in_turn(ways: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
    """Call every way once a round, for a number of rounds; return what each returned, by way."""
    found: dict[str, list[T]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            found[name].append(way())
    return found


def seconds(function: Callable[..., Any], *arguments: Any) -> float:
    """Return how long a call takes, the work that it leaves to the device included."""
    wait_for_device()
    start = time.perf_counter()
    function(*arguments)
    wait_for_device()
    return time.perf_counter() - start


def ratio(slow: Sequence[float], fast: Sequence[float]) -> tuple[float, float, float]:
    """Return the ratio of the medians over the rounds, and the smallest and largest of a round."""
    each = [one / other for one, other in zip(slow, fast, strict=True)]
    return statistics.median(slow) / statistics.median(fast), min(each), max(each)
