"""SNR: self-normalized resets (Farias and Jozefiak, ICLR 2025)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import Trainer
from torch import Tensor

from lightning_fire.callbacks.base.unit_reset import StepwiseUnitReset
from lightning_fire.callbacks.probing.batches import Forward
from lightning_fire.functional import NEVER, silence_threshold
from lightning_fire.where import HiddenUnits, UnitLayer


class SelfNormalizedReset(StepwiseUnitReset["_Record"]):
    """Resets hidden units that are silent for longer than their own past makes likely.

    A unit fires on a batch if it is above 0, after norm and nonlinearity, at any sample and place. How long it was
    silent, in samples, is noted each time it fires. A unit is reset as soon as its silence a is one that its own past
    holds for improbable, P(silence ≥ a) ≤ τ: incoming weights drawn by the layer's `reset_parameters`, bias and entries
    of normalisation layers at their start, outgoing weights 0, and 0 in the matching entries of the optimizer's
    moments.

    Logs, at the end of each epoch in which it acts, `snr/units`, the units reset so far, and `snr/threshold`, the
    silence in samples that a unit is allowed, mean over the units.

    Args:
        rejection: τ, in (0, 1) (paper: tuned, 0.01 to 0.08; the SNR paper calls it η).
        refresh_every: Optimizer steps after which each unit's threshold is taken from the silences since the last time
            (FIRE's authors: 16; SNR's: a task). Memory grows with it: 8 bytes a unit and step.
        max_silence: Longest threshold, in samples; half of it is the first one (authors: 20000).
        expansion: Factor by which a threshold grows if more than the share τ of the silences is longer.
        start_chunk: Do nothing before the data has changed this often (paper, warm start: 1).
        where: The units to act on. Default: `HiddenUnits()`, all that can be resolved.
        forward: Runs the module on a batch, to find its units. Default: its `loss_on`, otherwise `training_step`.
        seed: Seed of the new draws, the same on every rank.
        name: Prefix of the logged keys in the place of `snr`.

    Raises:
        ValueError: If an argument is out of range, or, when training starts, if `where` finds no units.
        MisconfigurationException: When training starts, if the module optimises manually and has no `loss_on`, and
            `forward` is not given.
    """

    name = "snr"

    def __init__(
        self,
        rejection: float = 0.02,
        refresh_every: int = 16,
        max_silence: int = 20000,
        expansion: float = 2.0,
        start_chunk: int = 0,
        where: HiddenUnits | None = None,
        forward: Forward | None = None,
        seed: int = 0,
        name: str | None = None,
    ):
        super().__init__(name, where=where, start_chunk=start_chunk, forward=forward, seed=seed)
        if not 0 < rejection < 1:
            raise ValueError(f"`rejection` must be between 0 and 1, got {rejection}")
        if refresh_every < 1:
            raise ValueError(f"`refresh_every` must be at least 1, got {refresh_every}")
        if max_silence < 2:
            raise ValueError(f"`max_silence` must be at least 2, got {max_silence}")
        if expansion < 1:
            raise ValueError(f"`expansion` must be at least 1, got {expansion}")
        self.rejection, self.refresh_every = rejection, refresh_every
        self.max_silence, self.expansion = max_silence, expansion

    def new_record(self, layer: UnitLayer, saved: Mapping[str, Any] | None, device: torch.device) -> "_Record":
        return _Record.of(layer, saved, device, self.max_silence // 2)

    def choose(self, trainer: Trainer) -> list[tuple[UnitLayer, Tensor]]:
        sizes = [layer.size for layer in self.layers]
        counts = torch.tensor([float(record.count) for record in self.records], device=self.records[0].age.device)
        seen = torch.cat([*(record.fired.float() for record in self.records), counts])
        *fired, counts = trainer.strategy.reduce(seen, reduce_op="sum").split([*sizes, len(sizes)])
        silent_too_long = []
        for record, on_any_rank, samples in zip(self.records, fired, counts.long(), strict=True):
            record.update(on_any_rank > 0, samples)
            if record.steps == self.refresh_every:
                record.refresh(self.rejection, self.expansion, self.max_silence)
            silent_too_long.append(record.age > record.threshold.maximum(record.largest))
        if not torch.cat(silent_too_long).any():  # a GPU is waited for once a step, not once a layer
            return []
        for record, mask in zip(self.records, silent_too_long, strict=True):
            record.begin(mask)
        return [(layer, mask.nonzero().flatten()) for layer, mask in zip(self.layers, silent_too_long, strict=True)]

    def report(self) -> dict[str, float]:
        thresholds = torch.cat([record.threshold for record in self.records])
        return {**super().report(), f"{self.name}/threshold": float(thresholds.float().mean())}


@dataclass
class _Record:
    """What is known of the units of a layer; every tensor has the shape `(units,)`.

    Attributes:
        age: Samples since the unit fired last, or began, int64.
        threshold: Longest silence that it is allowed, in samples, int64.
        fired: Whether it fired since the last step.
        silences: How long it was silent whenever it fired or was reset since the last refresh, `NEVER` where it did
            neither: a tensor for each step, and for each step with a reset.
        largest: Samples of the largest step so far, int64, a scalar: no threshold counts as shorter.
        steps: Steps since the last refresh.
        count: Samples since the last step.
    """

    age: Tensor
    threshold: Tensor
    fired: Tensor
    silences: list[Tensor]
    largest: Tensor
    steps: int
    count: int = 0

    @classmethod
    def of(
        cls, layer: UnitLayer, saved: Mapping[str, Any] | None, device: torch.device, first_threshold: int
    ) -> "_Record":
        """Begin, or go on with what `saved` returned."""
        zeros = torch.zeros(layer.size, dtype=torch.int64)
        saved = saved or {
            "age": zeros,
            "threshold": torch.full_like(zeros, first_threshold),
            "silences": zeros[:0].view(0, 0),
            "largest": torch.tensor(0),
            "steps": 0,
        }
        return cls(
            age=saved["age"].to(device, copy=True),
            threshold=saved["threshold"].to(device, copy=True),
            fired=torch.zeros(layer.size, dtype=torch.bool, device=device),
            silences=[row.to(device, copy=True) for row in saved["silences"]],
            largest=saved["largest"].to(device, copy=True),
            steps=saved["steps"],
        )

    def saved(self) -> dict[str, Any]:
        """Return what must last, on the CPU."""
        silences = torch.stack(self.silences) if self.silences else self.age[:0].view(0, 0)
        return {
            "age": self.age.cpu().clone(),
            "threshold": self.threshold.cpu().clone(),
            "silences": silences.cpu(),
            "largest": self.largest.cpu().clone(),
            "steps": self.steps,
        }

    def see(self, activity: Tensor, batch_size: int) -> None:
        """Note which units fire, shape `(samples and places, units)`."""
        self.fired |= activity.amax(0) > 0
        self.count += batch_size

    def update(self, fired: Tensor, samples: Tensor) -> None:
        """Note a step of so many samples, and in which units something fired."""
        self.silences.append(torch.where(fired, self.age, NEVER))
        self.age = torch.where(fired, 0, self.age + samples)
        self.largest = self.largest.maximum(samples)
        self.steps += 1
        self.fired.zero_()
        self.count = 0

    def refresh(self, rejection: float, expansion: float, longest: int) -> None:
        """Take the thresholds from the silences since the last time."""
        silences = torch.stack(self.silences, dim=1)
        fresh = silence_threshold(silences, self.threshold, rejection, expansion)
        self.threshold = fresh.clamp_max(longest).maximum(self.largest)
        self.silences, self.steps = [], 0

    def begin(self, mask: Tensor) -> None:
        """Forget units that begin anew; their silence counts as one that would have gone on."""
        self.silences.append(torch.where(mask, self.age, NEVER))
        self.age = torch.where(mask, 0, self.age)
