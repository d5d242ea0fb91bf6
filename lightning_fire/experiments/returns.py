"""The report of reinforcement learning: returns of evaluations over environment steps."""

import re
from collections.abc import Mapping

import numpy as np

from lightning_fire.experiments.logs import Curves, Name, Series
from lightning_fire.experiments.pictures import Panel
from lightning_fire.experiments.report import Column, Report

EVALUATION, _STEPS = "val/episode_return", "train/environment_steps"


def returns_of(curves: Curves) -> Series:
    """Return the mean return of the episodes of each evaluation, over environment steps."""
    steps, values = curves[EVALUATION]
    return environment_steps(curves, steps + 1), values


def events_of(curves: Curves) -> np.ndarray:
    """Return the environment steps done at each event of the method; none of one without events."""
    events = [steps for key, (steps, _) in curves.items() if re.fullmatch(r"[\w-]+/event", key)]
    return np.unique(environment_steps(curves, np.concatenate(events))) if events else np.array([])


def environment_steps(curves: Curves, steps: np.ndarray) -> np.ndarray:
    """Turn the steps of the logger into environment steps."""
    logged, done = curves[_STEPS]
    return np.interp(steps, logged + 1, done)


class ReturnReport(Report):
    """Of the returns of evaluations, before and since the event."""

    needs = "DQN or SAC"
    acts_on = (EVALUATION,)

    def __init__(self, curves: Mapping[Name, Curves], reference: str):
        first = [events[0] for of_run in curves.values() if len(events := events_of(of_run))]
        ends = [returns_of(of_run)[0][-1] for of_run in curves.values()]
        self.event = float(np.median(first)) if first else max(ends) / 2  # of runs without one: where the others act
        super().__init__(curves, reference)

    @classmethod
    def lacking(cls, curves: Curves) -> set[str]:
        """Return the keys that a run should have logged."""
        return {EVALUATION, _STEPS} - set(curves)

    @property
    def note(self) -> str:  # type: ignore[override]
        """Return what the numbers of the table are."""
        return (
            "returns: of evaluations, mean ± standard deviation (n - 1) over the seeds; the event is after"
            f" {self.event:.0f} environment steps; final: the last tenth of training; DfI: normalised deviation from"
            " isometry"
        )

    def measures(self, name: Name) -> dict[str, float]:
        """Reduce a run to its numbers; NaN: the run does not have it.

        `before`: return of the last evaluation before the event; `final`: mean of those in the last tenth of training;
        `since`: mean of all after the event; normalised DfI before and after and SFE / ‖W‖², means over the events.
        """
        steps, values = returns_of(self.curves[name])
        before, since = values[steps <= self.event], values[steps > self.event]
        return {
            "before": before[-1] if len(before) else np.nan,
            "final": values[steps >= steps[-1] - 0.1 * steps[-1]].mean(),
            "since": since.mean() if len(since) else np.nan,
            "dfi_before": self._of_events(name, "dfi_normalized_before"),
            "dfi_after": self._of_events(name, "dfi_normalized_after"),
            "sfe": self._of_events(name, "sfe_normalized"),
        }

    def _of_events(self, name: Name, measure: str) -> float:
        found = [values for key, (_, values) in self.curves[name].items() if re.fullmatch(rf"[\w-]+/{measure}", key)]
        return float(np.mean(found[0])) if found else np.nan

    def columns(self) -> list[Column]:
        """Return the columns of the table."""
        return [
            Column("before the event", "before", digits=1),
            Column("final return", "final", digits=1),
            Column(f"minus {self.reference} (95 %)", "final", "minus", digits=1),
            Column("mean since", "since", digits=1),
            Column("DfI before → after", "dfi", "arrow", idle=True),
            Column("SFE/‖W‖²", "sfe", "mean"),
        ]

    def panels(self) -> list[Panel]:
        """Return the return of each evaluation, the event marked."""
        curves: dict[str, list[Series]] = {}
        for (_, method, _), run in self.curves.items():
            curves.setdefault(method, []).append(returns_of(run))
        labels = {"x": "environment steps", "y": "return of an episode of evaluation"}
        return [Panel(curves, **labels, lines={self.event: ""})]
