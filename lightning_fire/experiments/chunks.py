"""The report of data that arrives in chunks: accuracy, or another metric, over epochs."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from lightning_fire.experiments.logs import Curves, Name, Series, of_events, units_reset
from lightning_fire.experiments.pictures import Panel
from lightning_fire.experiments.report import UNITS_RESET, Column, ComparisonReport, mean, with_spread

LOWEST_DFI = 1e-4  # end of the axis: exact projections have 1e-13
SPREAD = "all: mean ± standard deviation (n - 1) over the seeds; – : not measured"
_OF_EVENTS = {
    "sfe": "sfe_normalized",
    "lambda_max_before": "lambda_max_before",
    "lambda_max_after": "lambda_max_after",
}
_CHUNK, _DFI, _RAW_DFI, DORMANT = (
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
    def needs(self) -> dict[str, str]:
        """Keys that a run has to log for a report of it, and what logs each."""
        stage = "training" if self.key.startswith("train/") else "a validation (see check_val_every_n_epoch)"
        return {_CHUNK: "PlasticityMonitor", self.key: stage}

    def of(self, curves: Curves) -> Series:
        """Return its curve."""
        return curves.get(f"{self.key}_seen", curves.get(self.key, (np.array([]), np.array([]))))

    def gain(self, values: np.ndarray) -> np.ndarray:
        """Return the values such that more is better."""
        return values if self.mode == "max" else -values


ONLINE = Metric("train/online_accuracy"), Metric("train/online_error", "min")  # of streams


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


def measures_of(run: ChunkedRun, reference: ChunkedRun | None) -> dict[str, float]:
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
    curves, at_end = run.curves, run.last_in_chunk(run.metric)
    _, *later = run.in_chunks(run.metric)
    target = np.nan if reference is None else reference.last_in_chunk(reference.metric)[-1]
    online = next((curves[metric.key][1] for metric in ONLINE if metric.key in curves), None)
    fifth = 0 if online is None else max(1, round(len(online) / 5))
    dormant = run.last_in_chunk(curves[DORMANT]) if DORMANT in curves else []
    return {
        "after_event": mean(run.at_new_data),
        "final": at_end[-1],
        "average": mean(at_end),
        "first_epoch_after": mean([chunk[0] for chunk in later if len(chunk)]),
        "area": mean(np.concatenate([[], *later])),
        "epochs_to_reference": run.epochs_to(target, later[-1]) if later and not np.isnan(target) else np.nan,
        **{name: mean(values) for name, values in run.deviations().items()},
        **{name: mean(of_events(curves, key)) for name, key in _OF_EVENTS.items()},
        "drop": mean(run.drops()),
        "recovery": mean(run.recoveries()),
        "units_reset": units_reset(curves),
        "online_first": mean(online[:fifth]) if fifth else np.nan,
        "online_last": mean(online[-fifth:]) if fifth else np.nan,
        "test_last": mean(at_end[-fifth:]) if fifth else np.nan,
        "dormant_last": mean(dormant[-fifth:]) if fifth else np.nan,
    }


class ChunkReport(ComparisonReport):
    """Report of validation accuracy, or another metric, over the epochs of chunks."""

    of_events = (
        Column("after the event", "after_event", optional=True),
        Column("DfI before", "dfi_before"),
        Column("DfI after", "dfi_after", idle=True),
        Column("DfI (eq. 2) before", "dfi_raw_before", digits=2, optional=True),
        Column("DfI (eq. 2) after", "dfi_raw_after", digits=2, optional=True),
        Column("SFE/‖W‖²", "sfe"),
        UNITS_RESET,
    )

    def __init__(self, curves: Mapping[Name, Curves], reference: str, metric: Metric = Metric()):
        self.metric = metric
        self.runs = {name: ChunkedRun(of_run, metric) for name, of_run in curves.items()}
        self.acts_on = [metric.key, f"{metric.key}_seen", _DFI]
        if all(len(run.starts) < 3 for run in self.runs.values()):  # one chunk
            self.of_events = ()
        self.columns = (
            Column("first epoch", "first_epoch_after"),
            Column("first epoch minus {reference} (95 %)", "first_epoch_after", "minus"),
            Column("area", "area"),
            Column(f"final {metric.name}", "final"),
            Column("minus {reference} (95 %)", "final", "minus"),
            Column("epochs to it", "epochs_to_reference", "reached", digits=1),
        )
        self.note = (
            f"{metric.name}: {metric.origin}; {SPREAD}\nfirst epoch: after one epoch on new data; after the"
            " event: before the first batch of new data; these and all columns of events are means over the chunks but"
            " the first\narea: mean of all epochs since the first event; epochs to it: in the last chunk, until the"
            " reference's final value\nDfI: normalised deviation from isometry; DfI (eq. 2): the paper's ‖WᵀW − I‖²,"
            " which also counts the scale; both are means over the weights that the method replaces, or over all"
            " weights by the PlasticityMonitor (before: if it measures the last epoch of each chunk)"
        )
        super().__init__(curves, reference)

    def measures(self, name: Name) -> dict[str, float]:
        start, _, seed = name
        return measures_of(self.runs[name], self.runs.get((start, self.reference, seed)))

    def panels(self) -> list[Panel]:
        """Return metric and deviation from isometry over chunks.

        Every chunk is equally wide; a value on a dashed line, where new data arrives, is that just after the method has
        acted. The axis of the metric covers the values at which chunks end: the drop after an event may go below it.
        """
        runs = self.by_method(self.runs.get)
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
