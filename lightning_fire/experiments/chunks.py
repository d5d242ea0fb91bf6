"""The report of data that arrives in chunks: accuracy, or another metric, over epochs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from lightning_fire.experiments.figures import Panel
from lightning_fire.experiments.logs import NOTHING, Curves, Name, Series, of_events, units_reset
from lightning_fire.experiments.report import UNITS_RESET, Column, Compared, ComparisonReport
from lightning_fire.experiments.tables import mean, with_spread

LOWEST_DFI = 1e-4  # lower limit of the axis: exact projections have 1e-13
SPREAD = "all: mean ± standard deviation (n - 1) over the seeds; – : not measured"
_CHUNK, _DFI, DORMANT = "plasticity/chunk", "plasticity/dfi_normalized", "plasticity/dormant_fraction"


@dataclass(frozen=True)
class Metric:
    """The compared metric: a key logged each epoch, and whether larger is better.

    If the key was also logged with the suffix `_seen` (classes seen so far), that one is used.
    """

    key: str = "val/accuracy"
    mode: str = "max"

    @property
    def name(self) -> str:
        """Name in tables and figures."""
        return "accuracy" if self.key == "val/accuracy" else self.key

    @property
    def origin(self) -> str:
        """Data on which it is measured, from its key."""
        known = {"val": "on the validation data", "train": "on the training data", "test": "on the test data"}
        return known.get(self.key.partition("/")[0], "as the module logs it")

    @property
    def needs(self) -> dict[str, str]:
        """Keys that a run must log for this report, each with a description of its source."""
        stage = "training" if self.key.startswith("train/") else "a validation (see check_val_every_n_epoch)"
        return {_CHUNK: "PlasticityMonitor", self.key: stage}

    def gain(self, values: Any) -> Any:
        """Return a number or an array, with its sign changed so that more is better."""
        return values if self.mode == "max" else -values


ONLINE = Metric("train/online_accuracy"), Metric("train/online_error", "min")  # of streams


class ChunkedRun:
    """One run over chunks of data.

    Attributes:
        metric: Curve of the metric on validation data, by optimizer step.
        dfi: Normalized deviation from isometry after each epoch, mean over the weights; may be empty.
        starts: Optimizer steps done at the start of each chunk, shape `(chunks + 1,)`; the last entry is the end.
        at_new_data: The metric at the start of each chunk except the first, after the method has acted; may be empty.
        follows: Whether the first chunk is new data for weights of an earlier training.
    """

    def __init__(self, curves: Curves, metric: Metric):
        self.curves, self._metric = curves, metric
        self.metric, self.dfi = self.curve(f"{metric.key}_seen", metric.key), self.curve(_DFI)
        steps, chunks = curves[_CHUNK]
        begins = [steps[chunks == chunk].min() for chunk in np.unique(chunks)]
        self.follows = bool(chunks.min() > 0)
        self.starts = np.append(begins, np.concatenate([self.metric[0], self.dfi[0]]).max() + 1)
        self.at_new_data = self.curve(f"{metric.key}_at_new_data")[1]

    @property
    def fifth(self) -> int:
        """Number of tasks in the first or last fifth, at least 1."""
        return max(1, round((len(self.starts) - 1) / 5))

    def curve(self, *keys: str) -> Series:
        """Return the curve of the first given key that was logged; an empty curve if none was."""
        return next((self.curves[key] for key in keys if key in self.curves), NOTHING)

    def with_events(self, series: Series, values: np.ndarray) -> Series:
        """Return a curve over chunks of width 1, with the value at the start of each chunk except the first, if any."""
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
        """Return the last value of a curve in each chunk, shape `(chunks,)`; NaN for a chunk without values."""
        return np.array([part[-1] if len(part) else np.nan for part in self.in_chunks(series)])

    def at_chunk_ends(self, key: str) -> np.ndarray:
        """Return the values logged in the last epoch of each chunk except the last, just before new data."""
        (epochs, chunks), (steps, values) = self.curves[_CHUNK], self.curve(key)
        last_epochs = [epochs[chunks == chunk].max() for chunk in np.unique(chunks)]
        within = [(last <= steps) & (steps < end) for last, end in zip(last_epochs, self.starts[1:], strict=True)]
        return np.concatenate([[], *(values[there][-1:] for there in within[:-1])])

    def deviations(self) -> dict[str, np.ndarray]:
        """Return both forms of DfI before and after each arrival of data, by name; empty if unknown.

        They are logged by the method at its events, or otherwise by the monitor, over all weights.
        """
        logged = len(of_events(self.curves, "dfi_normalized_before"))
        found: dict[str, np.ndarray] = {}
        for name, key, group in (("dfi", "dfi_normalized", ""), ("dfi_raw", "dfi", ".raw")):
            ends = [of_events(self.curves, f"{key}_{end}", group) for end in ("before", "after")]
            if not logged:
                key = f"plasticity{group}/{key}"
                ends = [self.at_chunk_ends(key), self.curve(f"{key}_at_new_data")[1]]
            found |= {f"{name}_before": ends[0], f"{name}_after": ends[1]}
        return found

    def epochs_to(self, target: float, values: np.ndarray) -> float:
        """Return the number of epochs until a value is first reached, at least 1; Inf if never.

        Inf means longer than observed: comparisons and medians of such times remain correct, and a mean is Inf.
        """
        reached = np.flatnonzero(self._metric.gain(values) >= self._metric.gain(target))
        return float(reached[0] + 1) if len(reached) else float("inf")

    def measures(self, reference: "ChunkedRun | None") -> dict[str, float]:
        """Summarize the run in numbers; NaN: not available, or the metric became NaN.

        Metric: `after_event` (before the first batch), `final`, `average` (at the ends of the chunks),
        `first_epoch_after`, `area` (all epochs since the first event), `epochs_to_reference` (in the last chunk, until
        the final value of the reference with this seed), `drop` (at the chunk boundary) and `recovery` (epochs until it
        recovers; Inf: never). Events: normalized DfI, DfI by the paper's eq. 2 (`dfi_raw_…`) and largest eigenvalue of
        the Hessian before and after, SFE / ‖W‖²; both DfI also for methods without events. `units_reset`: number of
        hidden units that the method has re-initialized. Streams, over the first or last fifth of the tasks (at least
        one): online accuracy or error, `test_last` (at the end of a task), `dormant_last` (fraction of units). Metrics
        of events are means over the chunks except the first; epochs are those with a validation.
        """
        curves, at_end = self.curves, self.last_in_chunk(self.metric)
        before, every = at_end[:-1], self.in_chunks(self.metric)
        later = every[0 if self.follows else 1 :]
        ends = [chunk[-1:] for chunk in every]
        target = np.nan if reference is None else reference.last_in_chunk(reference.metric)[-1]
        known = len(self.at_new_data) == len(before)
        drops = [self._metric.gain(end - new) for end, new in zip(ends, self.at_new_data, strict=False) if known]
        online = next((curves[metric.key][1] for metric in ONLINE if metric.key in curves), NOTHING[1])
        fifth = self.fifth
        dormant = self.last_in_chunk(self.curve(DORMANT))
        return {
            "after_event": _mean_of_all(self.at_new_data),
            "final": at_end[-1],
            "average": _mean_of_all(*ends),
            "first_epoch_after": _mean_of_all(*(chunk[:1] for chunk in later)),
            "area": _mean_of_all(*later),
            "epochs_to_reference": self.epochs_to(target, later[-1]) if later and not np.isnan(target) else np.nan,
            **{name: mean(values) for name, values in self.deviations().items()},
            "sfe": mean(of_events(curves, "sfe_normalized")),
            **{name: mean(of_events(curves, name)) for name in ("lambda_max_before", "lambda_max_after")},
            "drop": _mean_of_all(*drops),
            "recovery": mean([self.epochs_to(*pair) for pair in zip(before, every[1:], strict=True)]),
            "units_reset": units_reset(curves),
            "online_first": _mean_of_all(online[:fifth]),
            "online_last": _mean_of_all(online[-fifth:]),
            "test_last": _mean_of_all(*ends[-fifth:]) if len(online) else np.nan,
            "dormant_last": mean(dormant[-fifth:]) if len(online) else np.nan,
        }


def _mean_of_all(*parts: np.ndarray) -> float:
    """Return the mean of all logged values; NaN if there are none, or one is NaN: the run has diverged."""
    values = np.concatenate([[], *parts])
    return float(values.mean()) if len(values) else float("nan")


class ChunkReport(ComparisonReport):
    """Report of validation accuracy, or another metric, over the epochs of chunks."""

    until = "epochs_to_reference", "epochs"
    of_events: Sequence[Column] = (
        Column("after the event", "after_event", optional=True),
        Column("DfI before", "dfi_before"),
        Column("DfI after", "dfi_after", idle=True),
        Column("DfI (eq. 2) before", "dfi_raw_before", digits=2, optional=True),
        Column("DfI (eq. 2) after", "dfi_raw_after", digits=2, optional=True),
        Column("SFE/‖W‖²", "sfe"),
        UNITS_RESET,
    )

    def __init__(self, curves: Mapping[Name, Curves], reference: str, metric: Metric = Metric()):
        self.metric, self.compared = metric, Compared("final", metric.name, metric.mode)
        self.runs = {name: ChunkedRun(of_run, metric) for name, of_run in curves.items()}
        self.acts_on = [metric.key, f"{metric.key}_seen", _DFI]
        if all(len(run.starts) < 3 and not run.follows for run in self.runs.values()):  # one chunk
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
            " reference's final value\nDfI: normalized deviation from isometry; DfI (eq. 2): the paper's ‖WᵀW − I‖²,"
            " which also counts the scale; both are means over the weights that the method replaces, or over all"
            " weights by the PlasticityMonitor (before: if it measures the last epoch of each chunk)"
        )

        super().__init__(curves, reference)

    def measures(self, name: Name) -> dict[str, float]:
        start, _, seed = name
        return self.runs[name].measures(self.runs.get((start, self.reference, seed)))

    def panels(self) -> list[Panel]:
        """Return metric and deviation from isometry over chunks.

        All chunks have the same width; new data arrives at the dashed lines, and a value on such a line is the one just
        after the method has acted. The axis of the metric covers the values at the ends of chunks; the drop after an
        event may be outside. Its limits are 0 if no value is below, and 1 for accuracies.
        """
        name, gain, every = self.metric.name, self.metric.gain, list(self.runs.values())
        ends, reached = (
            np.concatenate(of)
            for of in ([run.last_in_chunk(run.metric) for run in every], [run.metric[1] for run in every])
        )
        worst, best = np.nanmin(gain(ends)), np.nanmax(gain(reached))
        around = worst - 0.5 * (best - worst) - 1e-3, best + 0.05 * (best - worst) + 1e-3
        low, high = sorted(float(gain(end)) for end in around)
        low = max(low, 0.0) if np.nanmin(reached) >= 0 else low
        high = min(high, 1.0) if "accuracy" in self.metric.key and np.nanmax(reached) <= 1 else high
        runs = self.by_method(self.runs.__getitem__)
        values = {m: [r.with_events(r.metric, r.at_new_data) for r in of] for m, of in runs.items()}
        known = {m: of for m, of in runs.items() if all(len(run.dfi[0]) for run in of)}
        dfi = {m: [r.with_events(r.dfi, r.deviations()["dfi_after"]) for r in of] for m, of in known.items()}
        panel = partial(
            Panel,
            x="chunks of data (all epochs of a chunk between two dashed lines)",
            lines=dict.fromkeys(range(1, max(len(run.starts) for run in every) - 1), ""),
            whole_numbers=True,
        )
        labels = {m: f"{m}  {with_spread(list(self.of('', m, 'final').values()))}" for m in runs}
        title = f"validation {name}" if name == "accuracy" else name
        of_metric = panel(values, y=title, low=low, high=high, labels=labels, legend=f"final {name}")
        return [of_metric, *([panel(dfi, y="normalized DfI", log=True, low=LOWEST_DFI)] if dfi else [])]
