"""Logged values of runs, read from their TensorBoard files as one long table."""

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lightning_fire.experiments.runs import MARKER

COLUMNS = ("start", "method", "seed", "step", "key", "value")

Series = tuple[np.ndarray, np.ndarray]  # positions, such as optimizer steps, and values
Curves = Mapping[str, Series]  # of one run, by key
Name = tuple[str, str, int]  # of a run: start, method, seed
NOTHING: Series = (np.array([]), np.array([]))  # of a key that was not logged

_UNITS = r"(?!(train|val|test)/)[\w-]+/units"
_SECONDS = r"(?!(train|val|test|plasticity)/)[\w-]+/seconds"


def read_logs(output: str | Path) -> pd.DataFrame:
    """Read the logs of all finished runs of a comparison.

    Args:
        output: The folder of `lightning-fire compare`.

    Returns:
        One row per logged value, except in the groups `events`, `charts` and `losses`: `start` (the checkpoint that the
        run continued from, in recipes with `starts`), `method`, `seed`, `step` (as the loggers count), `key` and
        `value`.
    """
    parts = []
    for marker in sorted(Path(output).rglob(f"seed*/{MARKER}")):
        *start, method, seed = marker.parent.relative_to(output).parts
        name = "/".join(start), method, int(seed.removeprefix("seed"))
        for key, (steps, values) in read_curves(marker.parent).items():
            parts.append(pd.DataFrame(dict(zip(COLUMNS, (*name, steps, key, values), strict=True))))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=list(COLUMNS))


def of_events(curves: Curves, measure: str, group: str = "") -> np.ndarray:
    """Return a metric of the events of the method in a run, logged as `{method}{group}/{measure}`; empty without one.

    If several methods logged it, the first by name counts. The group `.raw` has metrics that depend on the scale.
    """
    keys = sorted(key for key in curves if re.fullmatch(rf"[\w-]+{re.escape(group)}/{measure}", key))
    return curves[keys[0]][1] if keys else NOTHING[1]


def units_reset(curves: Curves) -> float:
    """Return the number of hidden units that a method has re-initialized in a run; NaN if it is not logged.

    Methods with events log the number at each event, others the number so far (continual backprop, SNR).
    """
    logged = {key.partition("/")[0]: values for key, (_, values) in curves.items() if re.fullmatch(_UNITS, key)}
    totals = [values.sum() if f"{method}/event" in curves else values[-1] for method, values in logged.items()]
    return float(sum(totals)) if totals else float("nan")


def seconds_of_events(curves: Curves) -> float:
    """Return the total time of all events in a run; NaN if no method has logged `{method}/seconds`."""
    logged = [values.sum() for key, (_, values) in curves.items() if re.fullmatch(_SECONDS, key)]
    return float(sum(logged)) if logged else float("nan")


def read_curves(folder: Path) -> dict[str, Series]:
    """Read the logs of one run."""
    log = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    log.Reload()
    curves = {}
    for key in log.Tags()["scalars"]:
        if not key.startswith(("events/", "charts/", "losses/")):  # often figures, whose values have their own keys
            events = log.Scalars(key)
            curves[key] = np.array([event.step for event in events]), np.array([event.value for event in events])
    return curves
