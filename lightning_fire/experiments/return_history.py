"""What a run of reinforcement learning logged."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lightning_fire.experiments.history import Series, read_scalars
from lightning_fire.experiments.runs import Run

EVALUATION = "val/episode_return"
_DATA = "ReplayDataModule"


@dataclass(frozen=True)
class ReturnHistory:
    """The curves of one run, over environment steps.

    Attributes:
        returns: Mean return of the episodes of each evaluation.
        events: Environment steps done at each event of its method; none of one without events.
        dfi: Normalised deviation from isometry right before and right after the events, means over the events and the
            weights that the method, the first of several, replaces; NaN where it was not logged.
        sfe: Normalised squared Frobenius error, mean over the events; NaN likewise.
    """

    returns: Series
    events: np.ndarray
    dfi: tuple[float, float]
    sfe: float

    def before(self, place: float) -> float:
        """Return the return of the last evaluation up to some environment step; NaN if there is none."""
        steps, values = self.returns
        earlier = values[steps <= place]
        return float(earlier[-1]) if len(earlier) else float("nan")

    def since(self, place: float) -> float:
        """Return the mean return of the evaluations after some environment step; NaN if there is none."""
        steps, values = self.returns
        later = values[steps > place]
        return float(later.mean()) if len(later) else float("nan")

    @property
    def final(self) -> float:
        """Mean return of the evaluations in the last tenth of training."""
        steps, values = self.returns
        return float(values[steps >= steps[-1] - 0.1 * steps[-1]].mean())


def read_returns(folder: Path) -> ReturnHistory:
    """Read the curves of one run."""
    scalars = read_scalars(folder)
    if missing := {EVALUATION, "train/environment_steps"} - set(scalars):
        raise ValueError(f"{folder} has not logged {sorted(missing)}: a recipe with returns needs DQN or SAC")
    logged, done = scalars["train/environment_steps"]

    def place(steps: np.ndarray) -> np.ndarray:
        return np.interp(steps, logged + 1, done)

    def of_events(measure: str) -> float:
        found = [values for tag, (_, values) in scalars.items() if re.fullmatch(rf"[\w-]+/{measure}", tag)]
        return float(np.mean(found[0])) if found else float("nan")

    steps, values = scalars[EVALUATION]
    events = [steps for tag, (steps, _) in scalars.items() if re.fullmatch(r"[\w-]+/event", tag)]
    return ReturnHistory(
        returns=(place(steps + 1), values),
        events=np.unique(place(np.concatenate(events))) if events else np.array([]),
        dfi=(of_events("dfi_normalized_before"), of_events("dfi_normalized_after")),
        sfe=of_events("sfe_normalized"),
    )


def has_returns(runs: Sequence[Run], extra: Mapping[str, Any]) -> bool:
    """Tell whether runs are of reinforcement learning: their data comes from a replay buffer."""
    try:
        data = runs[0].recipe(extra).get("data")
        return data["class_path"].rpartition(".")[2] == _DATA
    except (AttributeError, KeyError, TypeError, ValueError):  # the runs themselves will say what is wrong
        return False
