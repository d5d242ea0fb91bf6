"""Results of a comparison: numbers of each run, and their table, CSV files and figure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from lightning_fire.experiments.decision import FROM_SCRATCH, Cost, Decision, decision_of
from lightning_fire.experiments.figures import Panel, draw, relabelled
from lightning_fire.experiments.logs import Curves, Name, seconds_of_events
from lightning_fire.experiments.statistics import difference
from lightning_fire.experiments.tables import (
    aligned,
    deliver,
    difference_cell,
    figures,
    mean,
    number,
    when_reached,
    with_spread,
)
from lightning_fire.recipe.recipe import VANILLA

MINUS = "minus: difference with the same seed, its mean and 95 % Student-t interval"
RUN = ["start", "method", "seed"]  # index of all numbers


@dataclass(frozen=True)
class Column:
    """A column of a table: one number per run, over all seeds."""

    title: str  # `{reference}` stands for the name of the reference
    measure: str
    show: Literal["spread", "mean", "minus", "arrow", "reached"] = "spread"
    digits: int = 3  # after the decimal point
    idle: bool = False  # whether it marks methods that never acted
    optional: bool = False  # whether it is left out if no run has the number


class Compared(NamedTuple):
    """The number by which methods are compared: key in the report, name, and whether more is better."""

    measure: str = "final"
    name: str = "accuracy"
    mode: str = "max"


UNITS_RESET = Column("units reset", "units_reset", digits=1, optional=True)


class ComparisonReport:
    """Numbers, tables and figures of the runs of a comparison. Each kind of data has a subclass.

    Attributes:
        curves: Curves of each run, by start, method and seed.
        reference: The method that the others are compared with, seed by seed.
        labels: Names of methods in tables and figures. Default: their own.
        numbers: One row per run, by start, method and seed; NaN: not available; Inf: never reached.
    """

    note: str  # explains the columns
    columns: Sequence[Column]
    of_events: Sequence[Column] = ()  # columns of a second table, on the events
    acts_on: Sequence[str]  # curves that are bit-identical to those of vanilla if a method never acts
    side_by_side = False  # the panels of the figure
    mode = "max"  # `"min"` if less is better
    compared = Compared()
    until = "", ""  # measure of the time until the reference's final value, and its unit

    def __init__(self, curves: Mapping[Name, Curves], reference: str):
        self.curves, self.reference = curves, reference
        self.labels: dict[str, str] = {}
        index = pd.MultiIndex.from_tuples(list(curves), names=RUN)
        self.numbers = pd.DataFrame([self.measures(name) for name in curves], index=index, dtype=float)
        self._groups = {key: of.droplevel(RUN[:2]) for key, of in self.numbers.groupby(level=RUN[:2], sort=False)}

    def measures(self, name: Name) -> dict[str, float]:
        """Summarize a run in numbers."""
        raise NotImplementedError

    def panels(self) -> list[Panel]:
        """Return the panels of the figure."""
        raise NotImplementedError

    def remarks(self) -> list[str]:
        """Return sentences to print below the table."""
        return []

    def named(self, method: str) -> str:
        """Return the name of a method in tables and figures."""
        return self.labels.get(method, method)

    def by_method(self, of_run: Callable[[Name], Any]) -> dict[str, list[Any]]:
        """Return a value of each run, by method."""
        methods = dict.fromkeys(method for _, method, _ in self.curves)
        return {method: [of_run(name) for name in self.curves if name[1] == method] for method in methods}

    def of(self, start: str, method: str, measure: str) -> dict[int, float]:
        """Return one number per run of a method, by seed."""
        runs = self._groups.get((start, method))
        return {} if runs is None or measure not in runs else runs[measure].to_dict()

    def never_acted(self, start: str, method: str) -> bool:
        """Return whether the curves of a method equal those of vanilla bit for bit with each seed.

        Logged events do not show this: ReDo logs every check, regularizers and Muon may log no event.
        """
        seeds = self._groups[start, method].index
        pairs = [(self.curves[start, method, seed], self.curves.get((start, VANILLA, seed), {})) for seed in seeds]
        return method != VANILLA and all(
            key in vanilla and np.array_equal(own[key], vanilla[key], equal_nan=True)
            for own, vanilla in pairs
            for key in self.acts_on
            if key in own
        )

    def table(self) -> str:
        """Format the comparison for a terminal: mean ± standard deviation (n - 1) over the seeds."""
        return "\n\n".join(map(aligned, self.tables()))

    def tables(self) -> list[list[list[str]]]:
        """Return the cells of the table, and of a table of events if there are any; the first row is the header."""
        tables: list[list[list[str]]] = []
        first = 0 if any(start for start, _ in self._groups) else 1
        measured = self.numbers.columns[self.numbers.notna().any()]
        for columns in filter(None, (self.columns, self.of_events)):
            shown = [column for column in columns if not column.optional or column.measure in measured]
            titles = [column.title.replace("{reference}", self.named(self.reference)) for column in shown]
            rows = [[*RUN[first:2], *([] if tables else ["seeds"]), *titles]]
            for key, runs in self._groups.items():
                seeds = [] if tables else [str(len(runs))]
                rows.append(
                    [*[key[0], self.named(key[1])][first:], *seeds, *(self.cell(column, *key) for column in shown)]
                )
            tables.append(rows)
        return tables

    def cell(self, column: Column, start: str, method: str) -> str:
        """Format one cell of the table."""
        known = [not np.isnan(units) for units in self.of(start, method, "units_reset").values()]
        if column.idle and not any(known) and self.never_acted(start, method):  # a known number says whether it acted
            return "never acted"
        if column.show == "arrow":
            ends = (self.of(start, method, f"{column.measure}_{end}").values() for end in ("before", "after"))
            return " → ".join(number(mean(values), column.digits) for values in ends)
        values = self.of(start, method, column.measure)
        if column.show == "minus":
            return difference_cell(values, self.of(start, self.reference, column.measure), column.digits)
        if column.show == "mean":
            return number(mean(values.values()), column.digits)
        return (with_spread if column.show == "spread" else when_reached)(list(values.values()), column.digits)

    def decisions(
        self, worth: float | None = None, failed: Mapping[str, Mapping[str, Sequence[int]]] | None = None
    ) -> dict[str, Decision]:
        """Return the decision of the comparison, by start.

        Args:
            worth: Smallest difference of the compared number that matters. Default: that of `decision_of`.
            failed: Seeds whose run failed, by start and method.
        """
        failed = failed or {}
        starts = dict.fromkeys([*(start for start, _ in self._groups), *failed])
        return {start: self._decision(start, worth, failed.get(start, {})) for start in starts}

    def _decision(self, start: str, worth: float | None, failed: Mapping[str, Sequence[int]]) -> Decision:
        (measure, name, mode), (until, unit) = self.compared, self.until
        methods = [method for of_start, method in self._groups if of_start == start]
        known = VANILLA in {*methods, *failed} or self.reference in FROM_SCRATCH
        continued = VANILLA if known else self.reference
        costs = {}
        for method in methods:
            times = self.of(start, method, until) if continued == self.reference else {}
            seconds = [seconds_of_events(run) for (at, m, _), run in self.curves.items() if (at, m) == (start, method)]
            costs[method] = Cost([time for time in times.values() if not np.isnan(time)], mean(seconds))
        return decision_of(
            {method: self.of(start, method, measure) for method in methods},
            name,
            mode,
            continued,
            worth,
            idle=[method for method in methods if self.never_acted(start, method)],
            failed=failed,
            costs=costs,
            unit=unit,
        )

    def summary(self) -> pd.DataFrame:
        """Return mean, standard deviation (n - 1) and difference to the reference, one row per number."""
        rows = []
        for start, method in self._groups:
            for measure in self.numbers:
                values = self.of(start, method, measure)
                if there := [value for value in values.values() if not np.isnan(value)]:
                    spread = np.std(there, ddof=1) if len(there) > 1 and np.isfinite(there).all() else np.nan
                    less = difference(values, self.of(start, self.reference, measure))
                    rows.append([start, method, measure, len(there), np.mean(there), spread, self.reference, *less])
        names = ["start", "method", "measure", "seeds", "mean", "std", "reference", "difference", "low_95", "high_95"]
        return pd.DataFrame(rows, columns=names)

    def publish(self, output: Path, title: str, decision: str = "", form: str = "text") -> None:
        """Print the table, given decisions and the paths of the other files, and write everything."""

        def csv(rows: pd.DataFrame) -> Callable[[Path], object]:
            rows = rows if rows["start"].any() else rows.drop(columns="start")
            return partial(rows.to_csv, index=False, float_format="%.6g")

        panels = [relabelled(panel, self.labels) for panel in self.panels()]
        figure = partial(draw, panels, title=title, side_by_side=self.side_by_side)
        files = {"results.csv": csv(self.numbers.reset_index()), "summary.csv": csv(self.summary())}
        if decision:
            files["decision.txt"] = lambda path: path.write_text(f"{decision}\n", encoding="utf-8")
        note = "\n\n".join(filter(None, (decision, f"{self.note}\n{MINUS}")))
        deliver(output, self.tables(), files | figures("comparison", figure), note, form=form)
        print(f"means:       {output / 'summary.csv'}")
        for remark in self.remarks():
            print(f"\n{remark}\n")
        print(f"TensorBoard: tensorboard --logdir {output}")
