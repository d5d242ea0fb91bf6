"""The report of recipes that train by a function: one logged metric."""

from collections.abc import Mapping

import numpy as np

from lightning_fire.experiments.chunks import SPREAD, Metric
from lightning_fire.experiments.figures import Panel
from lightning_fire.experiments.logs import Curves, Name, units_reset
from lightning_fire.experiments.report import UNITS_RESET, Column, Compared, ComparisonReport


class FunctionReport(ComparisonReport):
    """Report of a metric logged by functions: the mean of the last fifth of its values, and of all."""

    def __init__(self, curves: Mapping[Name, Curves], reference: str, metric: Metric):
        self.metric, self.acts_on = metric, [metric.key]
        self.compared = Compared("final", metric.name, metric.mode)
        digits = 1 if max(np.nanmax(np.abs(run[metric.key][1])) for run in curves.values()) >= 100 else 3
        self.columns = [
            Column(f"final {metric.name}", "final", digits=digits),
            Column("minus {reference} (95 %)", "final", "minus", digits, idle=True),
            Column("area", "area", digits=digits),
            Column("minus {reference} (95 %)", "area", "minus", digits),
            UNITS_RESET,
        ]
        less = "; less is better" if metric.mode == "min" else ""
        self.note = f"final: mean of the last fifth of the values of {metric.key}{less}; area: mean of all\n{SPREAD}"
        super().__init__(curves, reference)

    def measures(self, name: Name) -> dict[str, float]:
        """Summarize a run in numbers.

        `final`: mean of the last fifth of the metric's values, at least one; `area`: mean of all; `units_reset`: number
        of hidden units that the method has re-initialized, NaN if the function does not log it.
        """
        values = self.curves[name][self.metric.key][1]
        last = values[-max(1, round(len(values) / 5)) :]
        return {"final": last.mean(), "area": values.mean(), "units_reset": units_reset(self.curves[name])}

    def panels(self) -> list[Panel]:
        return [Panel(self.by_method(lambda name: self.curves[name][self.metric.key]), "step", self.metric.name)]
