"""Report of a second phase of training that continues from several checkpoints of the first."""

from collections.abc import Mapping
from functools import partial

import numpy as np

from lightning_fire.experiments.figures import Panel
from lightning_fire.experiments.logs import NOTHING, Curves, Name, Series, seconds_of_events
from lightning_fire.experiments.report import Column, Compared, ComparisonReport

LOSS, AT_START = "val/loss", "val/loss_at_new_data"
NEEDS = dict.fromkeys((LOSS, AT_START), "LanguageModel")


def since_start(curves: Curves) -> Series:
    """Return the validation loss of a run over the optimizer steps of its phase; at 0, just after the event."""
    (began, *_), _ = curves[AT_START]
    (steps, values), first = curves[LOSS], curves.get(AT_START, NOTHING)
    return np.append(first[0] - began, steps + 1 - began), np.append(first[1], values)


class PhaseReport(ComparisonReport):
    """Report of the validation loss of phase 2, from each of the checkpoints of phase 1.

    `first`: the curves of phase 1, by seed; `taken`: the steps of phase 1 at each checkpoint, by start and seed.
    """

    side_by_side = True
    acts_on = (LOSS,)
    compared = Compared("final", "loss", "min")
    until = "steps_to_reference", "steps"

    def __init__(
        self,
        curves: Mapping[Name, Curves],
        reference: str,
        first: Mapping[int, Curves],
        taken: Mapping[str, Mapping[int, int]],
    ):
        self.first, self.taken = first, taken
        keys = dict.fromkeys(key for run in curves.values() for key in run if key.startswith(f"{LOSS}/"))
        self.texts = [key.removeprefix(f"{LOSS}/") for key in keys]  # that have a validation loss of their own
        self.columns = [
            Column("loss after the event", "at_start"),
            Column("final loss", "final"),
            Column("minus {reference} (95 %)", "final", "minus"),
            *(Column(f"on {text}", f"final_{text}") for text in self.texts),
            Column("steps to {reference}'s", "steps_to_reference", "reached", digits=0, idle=True),
        ]
        self.note = (
            "losses: nats per token on the validation blocks, mean ± standard deviation (n - 1) over the seeds; steps"
            f" to {reference}'s: until the loss is that of {reference} at the end"
        )
        super().__init__(curves, reference)

    def measures(self, name: Name) -> dict[str, float]:
        """Summarize a run in numbers.

        `at_start`: validation loss just after the event; `final`: at the end; `final_{text}`: for each text;
        `steps_to_reference`: optimizer steps until the loss is at most the final loss of the reference, Inf if never,
        NaN without a reference; `event_seconds`: time of the method's events, NaN if not logged.
        """
        run, (start, _, seed) = self.curves[name], name
        steps, losses = since_start(run)
        other = self.curves.get((start, self.reference, seed))
        target = np.nan if other is None else since_start(other)[1][-1]
        reached = steps[losses <= target]
        texts = {f"final_{text}": run[f"{LOSS}/{text}"][1][-1] for text in self.texts if f"{LOSS}/{text}" in run}
        return {
            "at_start": losses[0] if steps[0] == 0 else np.nan,
            "final": losses[-1],
            **texts,
            "steps_to_reference": np.nan if other is None else reached[0] if len(reached) else np.inf,
            "event_seconds": seconds_of_events(run),
        }

    def remarks(self) -> list[str]:
        return [
            f"start {name}: after {', '.join(map(str, by_seed.values()))} steps of phase 1"
            for name, by_seed in self.taken.items()
        ]

    def panels(self) -> list[Panel]:
        """Return the loss of phase 1 with the positions of the checkpoints, and of phase 2 from each of them.

        The axes of phase 2 cover the final losses of the methods; the loss just after an event may lie above.
        """
        curves = [(steps + 1, losses) for steps, losses in (run[LOSS] for run in self.first.values())]
        lines: dict[float, str] = {}
        for start, by_seed in self.taken.items():
            place = float(np.mean(list(by_seed.values())))
            lines[place] = f"{lines[place]}, {start}" if place in lines else start
        title = "phase 1"
        first = Panel({title: curves}, "optimizer steps", "validation loss (nats per token)", title, lines=lines)
        ends = [loss for loss in self.numbers["final"] if np.isfinite(loss)] or [0.0]
        low, high = min(ends) - 0.1 * np.ptp(ends) - 1e-3, max(ends) + 1.5 * np.ptp(ends) + 1e-2
        second: dict[str, dict[str, list[Series]]] = {}
        for (start, method, _), run in self.curves.items():
            second.setdefault(start, {}).setdefault(method, []).append(since_start(run))
        panel = partial(Panel, x="optimizer steps of phase 2", y="", low=low, high=high)
        return [first, *(panel(curves=of, title=f"phase 2 from {start}") for start, of in second.items())]
