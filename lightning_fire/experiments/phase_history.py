"""What a run logged of the phase of training that goes on from a checkpoint, and of the phase before."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lightning_fire.experiments.history import Series, read_scalars


@dataclass(frozen=True)
class PhaseHistory:
    """The curves of one run, from where it went on.

    Attributes:
        loss: Validation loss of the phase's mixture; optimizer steps since the phase began, the first of them 0 where
            the loss just after the event was measured.
        by_text: The same of each text by itself, by name.
        event_seconds: Time that the method took; NaN if it has not logged any.
        tokens_per_second: Median over the epochs.
    """

    loss: Series
    by_text: dict[str, Series]
    event_seconds: float
    tokens_per_second: float

    @property
    def at_start(self) -> float:
        """Loss just after the event, before the first step; NaN if it was not measured."""
        return float(self.loss[1][0]) if self.loss[0][0] == 0 else float("nan")

    @property
    def final(self) -> float:
        """Loss at the end."""
        return float(self.loss[1][-1])

    def steps_to(self, target: float) -> float:
        """Return the steps after which the loss is first at or below a target, at the times of validation."""
        steps, losses = self.loss
        reached = np.flatnonzero(losses <= target)
        return float(steps[reached[0]]) if len(reached) else float("inf")


def read_phase_history(folder: Path) -> PhaseHistory:
    """Read what a run that went on from a checkpoint has logged."""
    scalars = read_scalars(folder)
    if missing := {"val/loss", "val/loss_at_new_data"} - set(scalars):
        raise ValueError(f"{folder} has not logged {sorted(missing)}: a recipe with starts needs LanguageModel")
    (began, *_), _ = scalars["val/loss_at_new_data"]

    def since(key: str) -> Series:
        steps, values = scalars[f"val/loss{key}"]
        first = scalars.get(f"val/loss_at_new_data{key}", (np.array([]), np.array([])))
        return np.append(first[0] - began, steps + 1 - began), np.append(first[1], values)

    texts = [tag.removeprefix("val/loss/") for tag in scalars if tag.startswith("val/loss/")]
    speeds = scalars.get("train/tokens_per_second", (None, np.array([np.nan])))[1]
    own = [tag for tag in scalars if tag.count("/") == 1 and tag.endswith("/seconds") and tag != "plasticity/seconds"]
    return PhaseHistory(
        loss=since(""),
        by_text={text: since(f"/{text}") for text in texts},
        event_seconds=float(scalars[own[0]][1][-1]) if len(own) == 1 else float("nan"),
        tokens_per_second=float(np.median(speeds)),
    )


def read_first_phase(folder: Path) -> Series:
    """Read the validation loss of a training of the first phase alone: optimizer steps done, losses."""
    scalars = read_scalars(folder)
    if "val/loss" not in scalars:
        raise ValueError(f"{folder} has not logged val/loss: a recipe with starts needs LanguageModel")
    steps, losses = scalars["val/loss"]
    return steps + 1, losses
