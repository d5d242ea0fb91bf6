"""The report of data that arrives in chunks: accuracy, or another metric, over epochs and tasks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from lightning_fire.experiments.logs import Curves, Name, Series, of_events, units_reset
from lightning_fire.experiments.pictures import Panel
from lightning_fire.experiments.report import Column, Report, mean, number, with_spread
from lightning_fire.experiments.statistics import difference

LOWEST_DFI = 1e-4  # end of the axis: exact projections have 1e-13
_CHUNK, _DFI, _RAW_DFI, _DORMANT = (
    "plasticity/chunk",
    "plasticity/dfi_normalized",
    "plasticity.raw/dfi",
    "plasticity/dormant_fraction",
)


@dataclass(frozen=True)
class Metric:
    """Metric that is compared: a key that is logged each epoch, and whether larger is better.

    If the key was also logged with the suffix `_seen`, over the classes seen so far, that one is used.
    """

    key: str = "val/accuracy"
    mode: str = "max"

    @property
    def name(self) -> str:
        """Name in tables and figures."""
        return "accuracy" if self.key == "val/accuracy" else self.key

    @property
    def origin(self) -> str:
        """Data that it is measured on, as its key says."""
        known = {"val": "on the validation data", "train": "on the training data", "test": "on the test data"}
        return known.get(self.key.partition("/")[0], "as the module logs it")

    @property
    def logged_by(self) -> str:
        """Stage of an epoch that logs it."""
        return "training" if self.key.startswith("train/") else "a validation (see check_val_every_n_epoch)"

    def of(self, curves: Curves) -> Series:
        """Return its curve."""
        return curves.get(f"{self.key}_seen", curves.get(self.key, (np.array([]), np.array([]))))

    def gain(self, values: np.ndarray) -> np.ndarray:
        """Return the values such that more is better."""
        return values if self.mode == "max" else -values


_ONLINE = Metric("train/online_accuracy"), Metric("train/online_error", "min")  # of streams


class ChunkedRun:
    """One run over chunks of data.

    Attributes:
        metric: Its curve on validation data, by optimizer step.
        dfi: Normalised deviation from isometry after each epoch, mean over the weights; maybe empty.
        starts: Optimizer steps done at the start of each chunk, shape `(chunks + 1,)`; the last entry is the end.
        at_new_data: The metric at the start of each chunk but the first, after the method has acted; maybe empty.
    """

    def __init__(self, curves: Curves, metric: Metric):
        self.curves, self._metric = curves, metric
        self.metric, self.dfi = metric.of(curves), curves.get(_DFI, (np.array([]), np.array([])))
        steps, chunks = curves[_CHUNK]
        begins = [steps[chunks == chunk].min() for chunk in np.unique(chunks)]
        self.starts = np.append(begins, np.concatenate([self.metric[0], self.dfi[0]]).max() + 1)
        self.at_new_data = curves.get(f"{metric.key}_at_new_data", (None, np.array([])))[1]

    def with_events(self, series: Series, values: np.ndarray) -> Series:
        """Return a curve over chunks, each 1 wide, with a value at the start of each but the first if there is one."""
        steps, y = series
        if len(values) == len(self.starts) - 2:
            steps, y = np.append(steps, self.starts[1:-1]), np.append(y, values)
            order = np.argsort(steps, kind="stable")
            steps, y = steps[order], y[order]
        return np.interp(steps, self.starts, np.arange(len(self.starts))), y

    def by_task(self, key: str) -> Series:
        """Return a curve over tasks, counted from 1: its last value in each."""
        return np.arange(1, len(self.starts)), self.last_in_chunk(self.curves[key])

    def in_chunks(self, series: Series) -> list[np.ndarray]:
        """Return the values of a curve in each chunk."""
        steps, values = series
        return [values[(start <= steps) & (steps < end)] for start, end in pairwise(self.starts)]

    def last_in_chunk(self, series: Series) -> np.ndarray:
        """Return the last value of a curve in each chunk, shape `(chunks,)`; NaN where it has none."""
        return np.array([part[-1] if len(part) else np.nan for part in self.in_chunks(series)])

    def at_chunk_ends(self, key: str) -> np.ndarray:
        """Return what was logged in the last epoch of each chunk but the last, so of the weights before new data."""
        (epochs, chunks), (steps, values) = self.curves[_CHUNK], self.curves.get(key, (np.array([]), np.array([])))
        last_epochs = [epochs[chunks == chunk].max() for chunk in np.unique(chunks)]
        within = [(last <= steps) & (steps < end) for last, end in zip(last_epochs, self.starts[1:], strict=True)]
        return np.concatenate([values[there][-1:] for there in within[:-1]] or [[]])

    def deviations(self) -> dict[str, np.ndarray]:
        """Return both forms of DfI before and after each arrival of data, by name, empty where they are not known.

        They are those that the method logs for its events, or else those of the monitor, which are of all weights.
        """
        curves, nothing = self.curves, (None, np.array([]))
        if len(of_events(curves, "dfi_normalized_before")):
            return {
                "dfi_before": of_events(curves, "dfi_normalized_before"),
                "dfi_after": of_events(curves, "dfi_normalized_after"),
                "dfi_raw_before": of_events(curves, "dfi_before", ".raw"),
                "dfi_raw_after": of_events(curves, "dfi_after", ".raw"),
            }
        return {
            "dfi_before": self.at_chunk_ends(_DFI),
            "dfi_after": curves.get(f"{_DFI}_at_new_data", nothing)[1],
            "dfi_raw_before": self.at_chunk_ends(_RAW_DFI),
            "dfi_raw_after": curves.get(f"{_RAW_DFI}_at_new_data", nothing)[1],
        }

    def drops(self) -> np.ndarray:
        """Return what each arrival of data costs at once, `(chunks - 1,)`: the metric before it and just after."""
        before = self.last_in_chunk(self.metric)[:-1]
        if len(self.at_new_data) != len(before):
            return np.array([])
        return self._metric.gain(before) - self._metric.gain(self.at_new_data)

    def recoveries(self) -> list[float]:
        """Return the epochs until each chunk is as good as the end of the one before; Inf: it never is."""
        pairs = zip(self.in_chunks(self.metric)[1:], self.last_in_chunk(self.metric)[:-1], strict=True)
        return [self.epochs_to(before, chunk) for chunk, before in pairs]

    def epochs_to(self, target: float, values: np.ndarray) -> float:
        """Return the number of epochs after which a value is first reached, at least 1; Inf if it never is.

        Inf is longer than was observed: comparisons and medians of such times stay right, and a mean is Inf.
        """
        reached = np.flatnonzero(self._metric.gain(values) >= self._metric.gain(np.float64(target)))
        return float(reached[0] + 1) if len(reached) else float("inf")


class ChunkReport(Report):
    """Report of validation accuracy, or another metric, over the epochs of chunks.

    On streams it is a report of the online accuracy, or of the online error, of which less is better.
    """

    def __init__(self, curves: Mapping[Name, Curves], reference: str, metric: Metric = Metric()):
        self.metric = metric
        self.runs = {name: ChunkedRun(of_run, self.metric) for name, of_run in curves.items()}
        self.online = next((known for known in _ONLINE if all(known.key in of for of in curves.values())), None)
        self.stream = self.online is not None
        super().__init__(curves, reference)

    @classmethod
    def lacking(cls, curves: Curves, metric: Metric = Metric()) -> dict[str, str]:
        needed = {_CHUNK: "PlasticityMonitor", **({} if len(metric.of(curves)[0]) else {metric.key: metric.logged_by})}
        return {key: who for key, who in needed.items() if key not in curves}

    @cached_property
    def acts_on(self) -> Sequence[str]:  # type: ignore[override]
        return [self.metric.key, f"{self.metric.key}_seen", self.online.key if self.online else _DFI]

    @property
    def note(self) -> str:  # type: ignore[override]
        spread = "all: mean ± standard deviation (n - 1) over the seeds; – : not measured"
        if self.online:
            monitor = "by a PlasticityMonitor with data_every_n_steps, where it finds hidden units"
            of, less = ("accuracy", "") if self.online.mode == "max" else ("squared error", "; less error is better")
            return (
                f"online: {of} of each batch before the update with it, mean over the first and last fifth of the"
                f" tasks\ntest: {self.metric.name.removeprefix('val/')} on the task's validation data at its end;"
                f" dormant: fraction of hidden units, {monitor}; both: last fifth\n{spread}{less}"
            )
        return (
            f"{self.metric.name}: {self.metric.origin}; {spread}\nfirst epoch: after one epoch on new data; after the"
            " event: before the first batch of new data; these and all columns of events are means over the chunks but"
            " the first\narea: mean of all epochs since the first event; epochs to it: in the last chunk, until the"
            " reference's final value\nDfI: normalised deviation from isometry; DfI (eq. 2): the paper's ‖WᵀW − I‖²,"
            " which also counts the scale; both are means over the weights that the method replaces, or over all"
            " weights by the PlasticityMonitor (before: if it measures the last epoch of each chunk)"
        )

    def measures(self, name: Name) -> dict[str, float]:
        """Reduce a run to its numbers; NaN: the run does not have it.

        Of the metric: `after_event` (before the first batch), `final`, `average` (at the ends of the chunks),
        `first_epoch_after`, `area` (all epochs since the first event), `epochs_to_reference` (in the last chunk, until
        the final value of the reference with this seed), `drop` (lost at once) and `recovery` (epochs until it
        recovers). Of events: normalised DfI, DfI by the paper's eq. 2 (`dfi_raw_…`) and largest eigenvalue of the
        Hessian before and after, SFE / ‖W‖²; both DfI also of methods without events. `units_reset`: number of hidden
        units that the method has re-initialized. Of streams, in the first or last fifth of the tasks, at
        least one: online accuracy or error, `test_last` (at the end of a task), `dormant_last` (fraction of units).
        Metrics of events are means over the chunks but the first; epochs are those with a validation.
        """
        run, at_end = self.runs[name], self.runs[name].last_in_chunk(self.runs[name].metric)
        _, *later = run.in_chunks(run.metric)
        start, _, seed = name
        other = self.runs.get((start, self.reference, seed))
        target = np.nan if other is None else other.last_in_chunk(other.metric)[-1]
        return {
            "after_event": mean(run.at_new_data),
            "final": at_end[-1],
            "average": mean(at_end),
            "first_epoch_after": mean([chunk[0] for chunk in later if len(chunk)]),
            "area": mean(np.concatenate([[], *later])),
            "epochs_to_reference": run.epochs_to(target, later[-1]) if later and not np.isnan(target) else np.nan,
            **{name: mean(values) for name, values in run.deviations().items()},
            "sfe": mean(of_events(run.curves, "sfe_normalized")),
            "lambda_max_before": mean(of_events(run.curves, "lambda_max_before")),
            "lambda_max_after": mean(of_events(run.curves, "lambda_max_after")),
            "drop": mean(run.drops()),
            "recovery": mean(run.recoveries()),
            "units_reset": units_reset(run.curves),
            **_of_stream(run),
        }

    def columns(self) -> list[Column]:
        minus = f"minus {self.reference} (95 %)"
        if self.online:
            online = "online" if self.online.mode == "max" else "online error"
            return [
                Column(f"{online}, first", "online_first"),
                Column(f"{online}, last", "online_last"),
                Column(minus, "online_last", "minus", idle=True),
                Column("test, last", "test_last"),
                Column("dormant, last", "dormant_last"),
                *self.unit_column(),
            ]
        return [
            Column("first epoch", "first_epoch_after"),
            Column(f"first epoch {minus}", "first_epoch_after", "minus"),
            Column("area", "area"),
            Column(f"final {self.metric.name}", "final"),
            Column(minus, "final", "minus"),
            Column("epochs to it", "epochs_to_reference", "reached", digits=1),
        ]

    def event_columns(self) -> list[Column]:
        if self.stream or all(len(run.starts) < 3 for run in self.runs.values()):
            return []
        raw = [Column(f"DfI (eq. 2) {when}", f"dfi_raw_{when}", digits=2) for when in ("before", "after")]
        return [
            *([Column("after the event", "after_event")] if self.numbers["after_event"].notna().any() else []),
            Column("DfI before", "dfi_before"),
            Column("DfI after", "dfi_after", idle=True),
            *(column for column in raw if self.numbers[column.measure].notna().any()),
            Column("SFE/‖W‖²", "sfe"),
            *self.unit_column(),
        ]

    def remarks(self) -> list[str]:
        """Return which methods lost online accuracy on a stream, from the first fifth of the tasks to the last.

        A method has lost or gained where the 95 % Student-t interval of its change over the seeds does not contain 0.
        More online error is a loss.
        """
        if not self.online:
            return []
        less_is_better = self.online.mode == "min"
        names = "lost online accuracy", "neither lost nor gained", "gained"
        names = ("more online error", "neither more nor less", "less") if less_is_better else names
        parts: dict[str, list[str]] = {name: [] for name in names}
        lost, level, gained = parts.values()
        for method in self.numbers.index.unique("method"):
            first, last = (self.of("", method, f"online_{end}") for end in ("first", "last"))
            _, low, high = difference(last, first)
            start, end = mean(first.values()), mean(last.values())
            by = f"{end - start:+.2f}" if less_is_better else f"{100 * (end - start):+.0f} points"
            change = f"{method} {by} ({number(start, 2)} to {number(end, 2)})"
            if less_is_better:
                low, high = -high, -low
            if high < 0:
                lost.append(change)
            elif low > 0:
                gained.append(change)
            elif low <= 0 <= high:  # not of a method whose interval is NaN
                level.append(method)
        said = "; ".join(f"{what}: {', '.join(names)}" for what, names in parts.items() if names)
        return [f"From the first tasks to the last, {said}."] if said else []

    def panels(self) -> list[Panel]:
        """Return metric and deviation from isometry over chunks, or of a stream the online metric and dormant units.

        Every chunk is equally wide; a value on a dashed line, where new data arrives, is that just after the method has
        acted. The axis of the metric covers the values at which chunks end: the drop after an event may go below it.
        """
        runs = self.by_method(self.runs.get)
        if self.online:
            axis = {"x": "task", "seeds": True, "low": 0.0, "whole_numbers": True}
            curves = {method: [run.by_task(self.online.key) for run in of] for method, of in runs.items()}
            last = {method: mean(values[-1] for _, values in of) for method, of in curves.items()}
            ends = {method: f"{method}  {number(value, 2)}" for method, value in last.items()}
            known = {method: of for method, of in runs.items() if all(_DORMANT in run.curves for run in of)}
            dormant = {method: [run.by_task(_DORMANT) for run in of] for method, of in known.items()}
            return [
                Panel(curves, y=self.online.key.removeprefix("train/").replace("_", " "), labels=ends, **axis),
                *([Panel(dormant, y="dormant units", **axis)] if dormant else []),
            ]
        values = {m: [r.with_events(r.metric, r.at_new_data) for r in of] for m, of in runs.items()}
        known = {m: of for m, of in runs.items() if all(len(run.dfi[0]) for run in of)}
        dfi = {m: [r.with_events(r.dfi, r.deviations()["dfi_after"]) for r in of] for m, of in known.items()}
        chunks = max(len(run.starts) for run in self.runs.values()) - 1
        axis = {
            "x": "chunks of data (all epochs of a chunk between two dashed lines)",
            "lines": dict.fromkeys(range(1, chunks), ""),
            "whole_numbers": True,
        }
        low, high = self._range()
        labels = {m: f"{m}  {with_spread(list(self.of('', m, 'final').values()))}" for m in runs}
        name = f"validation {self.metric.name}" if self.metric.name == "accuracy" else self.metric.name
        of_metric = {"low": low, "high": high, "labels": labels, "legend": f"final {self.metric.name}"}
        of_dfi = [Panel(dfi, y="normalised DfI", log=True, low=LOWEST_DFI, **axis)] if dfi else []
        return [Panel(values, y=name, **of_metric, **axis), *of_dfi]

    def _range(self) -> tuple[float, float]:
        """Return the range of values at the ends of chunks, with room for drops on the worse side.

        It ends at 0 if no value is below, and at 1 for accuracies.
        """
        ends = self.metric.gain(np.concatenate([run.last_in_chunk(run.metric) for run in self.runs.values()]))
        worst, best = np.nanmin(ends), max(self.metric.gain(run.metric[1]).max() for run in self.runs.values())
        around = worst - 0.5 * (best - worst) - 1e-3, best + 0.05 * (best - worst) + 1e-3
        low, high = sorted(float(self.metric.gain(np.float64(end))) for end in around)
        every = np.concatenate([run.metric[1] for run in self.runs.values()])
        low = max(low, 0.0) if np.nanmin(every) >= 0 else low
        return low, min(high, 1.0) if "accuracy" in self.metric.key and np.nanmax(every) <= 1 else high


def _of_stream(run: ChunkedRun) -> dict[str, float]:
    names = ("online_first", "online_last", "test_last", "dormant_last")
    online = next((run.curves[metric.key][1] for metric in _ONLINE if metric.key in run.curves), None)
    if online is None:
        return dict.fromkeys(names, np.nan)
    tasks = max(1, round(len(online) / 5))
    dormant = run.last_in_chunk(run.curves[_DORMANT])[-tasks:] if _DORMANT in run.curves else []
    last = run.last_in_chunk(run.metric)[-tasks:]
    return dict(zip(names, map(mean, (online[:tasks], online[-tasks:], last, dormant)), strict=True))
