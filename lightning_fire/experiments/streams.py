"""The report of streams of tasks: accuracy, or error, of each batch before the update with it."""

from collections.abc import Mapping
from functools import partial

from lightning_fire.experiments.chunks import DORMANT, ONLINE, SPREAD, ChunkedRun, ChunkReport, Metric
from lightning_fire.experiments.figures import Panel
from lightning_fire.experiments.logs import Curves, Name
from lightning_fire.experiments.report import UNITS_RESET, Column, Compared, ComparisonReport
from lightning_fire.experiments.statistics import difference
from lightning_fire.experiments.tables import mean, number

# words for more and less of the online metric: title, unit, note, and the sentence on the last tasks
_WORDS = {
    "max": ("online", "accuracy", "", ("lost online accuracy", "neither lost nor gained", "gained")),
    "min": (
        "online error",
        "squared error",
        "; less error is better",
        ("more online error", "neither more nor less", "less"),
    ),
}


def report_of_chunks(curves: Mapping[Name, Curves], reference: str, metric: Metric) -> "ChunkReport | StreamReport":
    """Return the report of a stream if all runs have logged the same online metric, otherwise that of chunks."""
    online = next((known for known in ONLINE if all(known.key in of for of in curves.values())), None)
    return StreamReport(curves, reference, metric, online) if online else ChunkReport(curves, reference, metric)


class StreamReport(ComparisonReport):
    """Report of the online accuracy, or of the online error (less is better)."""

    def __init__(self, curves: Mapping[Name, Curves], reference: str, metric: Metric, online: Metric):
        self.metric, self.online = metric, online
        self.runs = {name: ChunkedRun(of_run, metric) for name, of_run in curves.items()}
        self.acts_on = [metric.key, f"{metric.key}_seen", online.key]
        title, of, less, _ = _WORDS[online.mode]
        self.compared = Compared("online_last", online.key.removeprefix("train/").replace("_", " "), online.mode)
        self.columns = [
            Column(f"{title}, first", "online_first"),
            Column(f"{title}, last", "online_last"),
            Column("minus {reference} (95 %)", "online_last", "minus", idle=True),
            Column("test, last", "test_last"),
            Column("dormant, last", "dormant_last"),
            UNITS_RESET,
        ]
        self.note = (
            f"online: {of} of each batch before the update with it, mean over the first and last fifth of the"
            f" tasks\ntest: {metric.name.removeprefix('val/')} on the task's validation data at its end; dormant:"
            " fraction of hidden units, by a PlasticityMonitor with data_every_n_steps, where it finds hidden units;"
            f" both: last fifth\n{SPREAD}{less}"
        )
        super().__init__(curves, reference)

    def measures(self, name: Name) -> dict[str, float]:
        start, _, seed = name
        return self.runs[name].measures(self.runs.get((start, self.reference, seed)))

    def remarks(self) -> list[str]:
        """Name the methods that lost online accuracy on a stream, from the first fifth of the tasks to the last.

        Also explain why dormant units are unknown, if no run has logged them. A method has lost or gained if the 95 %
        Student-t interval of its change over the seeds does not contain 0. More online error is a loss.
        """
        parts: dict[str, list[str]] = {name: [] for name in _WORDS[self.online.mode][-1]}
        lost, level, gained = parts.values()
        for method in self.numbers.index.unique("method"):
            first, last = (self.of("", method, f"online_{end}") for end in ("first", "last"))
            low, high = sorted(self.online.gain(end) for end in difference(last, first)[1:])
            start, end = mean(first.values()), mean(last.values())
            by = f"{end - start:+.2f}" if self.online.mode == "min" else f"{100 * (end - start):+.0f} points"
            change = f"{method} {by} ({number(start, 2)} to {number(end, 2)})"
            if high < 0:
                lost.append(change)
            elif low > 0:
                gained.append(change)
            elif low <= 0 <= high:  # not for a method whose interval is NaN
                level.append(method)
        said = "; ".join(f"{what}: {', '.join(names)}" for what, names in parts.items() if names)
        remarks = [f"From the first tasks to the last, {said}."] if said else []
        if self.numbers["dormant_last"].isna().all():
            steps = int(min(run.starts[-1] - run.starts[-1 - run.fifth] for run in self.runs.values()))
            remarks.append(
                f"Dormant units are not known: it takes a PlasticityMonitor with data_every_n_steps of at most {steps},"
                " the steps of the last fifth of the tasks, and hidden units that it finds."
            )
        return remarks

    def panels(self) -> list[Panel]:
        """Return the online metric and dormant units over tasks."""
        runs = self.by_method(self.runs.__getitem__)
        panel = partial(Panel, x="task", seeds=True, low=0.0, whole_numbers=True)
        curves = {method: [run.by_task(self.online.key) for run in of] for method, of in runs.items()}
        ends = {m: f"{m}  {number(mean(values[-1] for _, values in of), 2)}" for m, of in curves.items()}
        known = {method: of for method, of in runs.items() if all(DORMANT in run.curves for run in of)}
        dormant = {method: [run.by_task(DORMANT) for run in of] for method, of in known.items()}
        online = panel(curves, y=self.online.key.removeprefix("train/").replace("_", " "), labels=ends)
        return [online, *([panel(dormant, y="dormant units")] if dormant else [])]
