"""Paired timing: what is compared runs in turn, so that a slow spell of the machine falls on all of it."""

import argparse
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from machine import publish, wait_for_device

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


def share_of_loop(loop: Sequence[float], seconds: Sequence[float]) -> tuple[dict[str, Any], str]:
    """Return how much of a bare loop's speed another way keeps, for the file and for the screen."""
    middle, least, most = ratio(loop, seconds)
    row = {"share_of_the_loops_speed": round(middle, 4), "range": [round(least, 4), round(most, 4)]}
    return row, f"{middle:7.1%} of the loop ({least:.1%} – {most:.1%})"


def publish_each(
    table: Callable[[Any, int], dict[str, dict]], settings: Mapping[str, Any], options: argparse.Namespace
) -> None:
    """Measure all settings that were chosen, with the numbers that were given in the place of theirs, and publish.

    Args:
        table: From a setting, a named tuple, and the number of rounds to a row for each way.
        settings: All there are, by name.
        options: Of the command line: `only`, `rounds`, `json`, and numbers by the names of a setting's fields.
    """
    given = {key: value for key, value in vars(options).items() if value}
    results: dict[str, dict] = {"nets": {}, "settings": {}}
    for name in options.only:
        setting = settings[name]
        setting = setting._replace(**{field: given[field] for field in setting._fields if field in given})
        results["nets"][name] = table(setting, options.rounds)
        results["settings"][name] = setting._asdict()
    publish(results, options.json)
