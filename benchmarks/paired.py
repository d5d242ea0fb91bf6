"""Paired timing: the compared ways run alternately, so that a slow period of the machine affects all of them."""

import argparse
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from machine import publish, wait_for_device

T = TypeVar("T")


def in_turn(ways: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
    """Call all ways alternately, for a number of repetitions; return the results of each way."""
    found: dict[str, list[T]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            found[name].append(way())
    return found


def seconds(function: Callable[..., Any], *arguments: Any) -> float:
    """Return the seconds of a call, pending work of the device included."""
    wait_for_device()
    start = time.perf_counter()
    function(*arguments)
    wait_for_device()
    return time.perf_counter() - start


def ratio(slow: Sequence[float], fast: Sequence[float]) -> tuple[float, float, float]:
    """Return the ratio of the medians over the repetitions, and the smallest and largest of a repetition."""
    each = [one / other for one, other in zip(slow, fast, strict=True)]
    return statistics.median(slow) / statistics.median(fast), min(each), max(each)


def share_of_loop(loop: Sequence[float], seconds: Sequence[float]) -> tuple[dict[str, Any], str]:
    """Return the fraction of a bare loop's speed that another way has, for the file and for the screen."""
    middle, least, most = ratio(loop, seconds)
    row = {"share_of_the_loops_speed": round(middle, 4), "range": [round(least, 4), round(most, 4)]}
    return row, f"{middle:7.1%} of the loop ({least:.1%} – {most:.1%})"


def publish_each(
    table: Callable[[Any, int], dict[str, dict]], settings: Mapping[str, Any], options: argparse.Namespace
) -> None:
    """Measure the chosen settings, with the given numbers instead of theirs, and publish.

    Args:
        table: From a setting, a named tuple, and the number of repetitions to a row for each way.
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
