"""The report of reinforcement learning: returns of evaluations over environment steps."""

import re
from collections.abc import Mapping

import numpy as np

from lightning_fire.experiments.figures import Panel
from lightning_fire.experiments.logs import Curves, Name, Series, of_events, units_reset
from lightning_fire.experiments.report import UNITS_RESET, Column, Compared, ComparisonReport
from lightning_fire.experiments.tables import mean

EVALUATION, _STEPS = "val/episode_return", "train/environment_steps"
NEEDS = dict.fromkeys((EVALUATION, _STEPS), "DQN or SAC")


def returns_of(curves: Curves) -> Series:
    """Return the mean return over the episodes of each evaluation, by environment step.

    Logged steps are environment steps, except for other data, which logs batches.
    """
    steps, values = curves[EVALUATION]
    return np.interp(steps, *curves[_STEPS]), values


class ReturnReport(ComparisonReport):
    """Report of the returns of evaluations, before and since the event."""

    acts_on = (EVALUATION,)
    compared = Compared("final", "return")
    columns = (
        Column("before the event", "before", digits=1),
        Column("final return", "final", digits=1),
        Column("minus {reference} (95 %)", "final", "minus", digits=1),
        Column("mean since", "since", digits=1),
        Column("DfI before → after", "dfi", "arrow", idle=True),
        Column("SFE/‖W‖²", "sfe", "mean"),
        UNITS_RESET,
    )

    def __init__(self, curves: Mapping[Name, Curves], reference: str):
        first = []
        for run in curves.values():
            if events := [steps.min() for key, (steps, _) in run.items() if re.fullmatch(r"[\w-]+/event", key)]:
                first.append(np.interp(min(events), *run[_STEPS]))
        end = max(returns_of(run)[0][-1] for run in curves.values())
        self.event = float(np.median(first)) if first else end / 2  # for runs without events: where the others act
        self.note = (
            "returns: of evaluations, mean ± standard deviation (n - 1) over the seeds; the event is after"
            f" {self.event:.0f} environment steps; final: the last tenth of training; DfI: normalized deviation from"
            " isometry"
        )
        super().__init__(curves, reference)

    def measures(self, name: Name) -> dict[str, float]:
        """Summarize a run in numbers; NaN: not available.

        `before`: return of the last evaluation before the event; `final`: mean of those in the last tenth of training;
        `since`: mean of all after the event; normalized DfI before and after and SFE / ‖W‖², means over the events;
        `units_reset`: number of hidden units that the method has re-initialized.
        """
        run = self.curves[name]
        steps, values = returns_of(run)
        before, since = values[steps <= self.event], values[steps > self.event]
        return {
            "before": before[-1] if len(before) else np.nan,
            "final": values[steps >= steps[-1] - 0.1 * steps[-1]].mean(),
            "since": since.mean() if len(since) else np.nan,
            "dfi_before": mean(of_events(run, "dfi_normalized_before")),
            "dfi_after": mean(of_events(run, "dfi_normalized_after")),
            "sfe": mean(of_events(run, "sfe_normalized")),
            "units_reset": units_reset(run),
        }

    def panels(self) -> list[Panel]:
        curves = self.by_method(lambda name: returns_of(self.curves[name]))
        return [Panel(curves, "environment steps", "return of an episode of evaluation", lines={self.event: ""})]
