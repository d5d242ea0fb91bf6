"""What a run logged, read back from its TensorBoard files."""

import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

Series = tuple[np.ndarray, np.ndarray]  # optimizer steps, values


@dataclass(frozen=True)
class History:
    """The curves of one run.

    Attributes:
        accuracy: Test accuracy after each epoch, over the classes seen so far where that is logged.
        dfi: Normalised deviation from isometry after each epoch, mean over the weights.
        starts: Optimizer steps done at the start of each chunk, shape `(chunks + 1,)`; the last entry is the end.
        at_new_data: Test accuracy at the start of each chunk but the first, after the method has acted.
        dfi_before: Normalised deviation from isometry right before each event, mean over the weights that the method
            replaces; None if it has no events.
        dfi_after: The same right after each event.
        sfe: Normalised squared Frobenius error of each event; None if the method has none.
        lambda_max_before: Largest eigenvalue of the Hessian of the loss on the new data right before each event; None
            if that was not measured.
        lambda_max_after: The same right after each event.
        online: Online accuracy of each task, of a stream; None of other data.
        dormant: Fraction of dormant units, where `PlasticityMonitor` has looked; None if it never has.
    """

    accuracy: Series
    dfi: Series
    starts: np.ndarray
    at_new_data: np.ndarray
    dfi_before: np.ndarray | None
    dfi_after: np.ndarray | None
    sfe: np.ndarray | None
    lambda_max_before: np.ndarray | None = None
    lambda_max_after: np.ndarray | None = None
    online: Series | None = None
    dormant: Series | None = None

    def chunk_position(self, steps: np.ndarray) -> np.ndarray:
        """Turn optimizer steps into a place on an axis on which every chunk is 1 wide."""
        return np.interp(steps, self.starts, np.arange(len(self.starts)))

    def accuracy_with_events(self) -> Series:
        """Return the accuracy curve with the points just after each event in it."""
        return self._with_events(self.accuracy, self.at_new_data)

    def dfi_with_events(self) -> Series:
        """Return the curve of the deviation from isometry with the points just after each event in it."""
        return self._with_events(self.dfi, np.array([]) if self.dfi_after is None else self.dfi_after)

    def _with_events(self, series: Series, values: np.ndarray) -> Series:
        """Insert one value at the start of each chunk but the first; none where there is another number of them."""
        arrivals = self.starts[1:-1]
        if len(values) != len(arrivals):
            return series
        steps = np.append(series[0], arrivals)
        order = np.argsort(steps, kind="stable")
        return steps[order], np.append(series[1], values)[order]

    def in_chunks(self, series: Series) -> list[np.ndarray]:
        """Return the values of a curve in each chunk."""
        steps, values = series
        return [values[(start <= steps) & (steps < end)] for start, end in pairwise(self.starts)]

    def last_in_chunk(self, series: Series) -> np.ndarray:
        """Return the last value of a curve in each chunk, shape `(chunks,)`; NaN where it has none."""
        return np.array([part[-1] if len(part) else np.nan for part in self.in_chunks(series)])

    def drops(self) -> np.ndarray:
        """Return what each arrival of data costs at once, `(chunks - 1,)`: accuracy before it minus that just after."""
        before = self.last_in_chunk(self.accuracy)[:-1]
        if len(self.at_new_data) != len(before):
            return np.array([])
        return before - self.at_new_data

    def recoveries(self) -> np.ndarray:
        """Return the epochs until each chunk is as accurate as the end of the one before; Inf: it never is."""
        pairs = zip(self.in_chunks(self.accuracy)[1:], self.last_in_chunk(self.accuracy)[:-1], strict=True)
        return np.array([epochs_to(before, chunk) for chunk, before in pairs])


def epochs_to(target: float, accuracy: np.ndarray) -> float:
    """Return the number of epochs after which an accuracy is first reached, at least 1; Inf if it never is.

    Inf is longer than was observed: comparisons and medians of such times stay right, and a mean is Inf.

    Example:
        >>> epochs_to(0.5, np.array([0.2, 0.6, 0.4])), epochs_to(0.5, np.array([0.2, 0.3]))
        (2.0, inf)
    """
    reached = np.flatnonzero(accuracy >= target)
    return float(reached[0] + 1) if len(reached) else float("inf")


def read_history(folder: Path) -> History:
    """Read the curves of one run."""
    scalars = read_scalars(folder)
    tags = set(scalars)
    accuracy = "val/accuracy_seen" if "val/accuracy_seen" in tags else "val/accuracy"
    if missing := {accuracy, "plasticity/chunk", "plasticity/dfi_normalized"} - tags:
        raise ValueError(
            f"{folder} has not logged {sorted(missing)}: the module must log val/accuracy, as Classifier does"
        )

    def of_events(measure: str) -> np.ndarray | None:
        tag = next((tag for tag in sorted(tags) if re.fullmatch(rf"[\w-]+/{measure}", tag)), None)
        return scalars[tag][1] if tag else None

    steps, chunks = scalars["plasticity/chunk"]
    starts = np.array([steps[chunks == chunk].min() for chunk in np.unique(chunks)])
    end = max(scalars[tag][0].max() for tag in (accuracy, "plasticity/dfi_normalized")) + 1
    return History(
        accuracy=scalars[accuracy],
        dfi=scalars["plasticity/dfi_normalized"],
        starts=np.append(starts, end),
        at_new_data=scalars["val/accuracy_at_new_data"][1] if "val/accuracy_at_new_data" in tags else np.array([]),
        dfi_before=of_events("dfi_normalized_before"),
        dfi_after=of_events("dfi_normalized_after"),
        sfe=of_events("sfe_normalized"),
        lambda_max_before=of_events("lambda_max_before"),
        lambda_max_after=of_events("lambda_max_after"),
        online=scalars.get("train/online_accuracy"),
        dormant=scalars.get("plasticity/dormant_fraction"),
    )


def read_scalars(folder: Path) -> dict[str, Series]:
    """Read all scalars of TensorBoard event files, by tag."""
    log = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    log.Reload()
    curves = {}
    for tag in log.Tags()["scalars"]:
        events = log.Scalars(tag)
        curves[tag] = np.array([event.step for event in events]), np.array([event.value for event in events])
    return curves
