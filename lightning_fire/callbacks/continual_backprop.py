"""Continual backprop (Dohare et al., Nature 2024)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import Trainer
from torch import Tensor

from lightning_fire.callbacks.base.unit_reset import StepwiseUnitReset
from lightning_fire.callbacks.probing.batches import Forward
from lightning_fire.functional import contribution_utility, least_useful
from lightning_fire.where import HiddenUnits, UnitLayer


class ContinualBackprop(StepwiseUnitReset["_Record"]):
    """Replaces, step by step, a small share of the least useful hidden units.

    After each optimizer step: the utility of a unit, a running average of mean |h| · Σ |outgoing weights|, is brought
    up to date. Of the units older than `maturity` steps, the share `replacement_rate` is owed a new beginning; as soon
    as a layer is owed a whole unit, its least useful one gets it: incoming weights drawn by the layer's
    `reset_parameters`, bias and entries of normalisation layers at their start, outgoing weights 0, and 0 in the
    matching entries of the optimizer's moments. What the unit said on average goes into the bias of the layers after.

    Logs `continual_backprop/units`, the units replaced so far, at the end of each epoch in which it acts.

    Args:
        replacement_rate: ρ, share of the mature units replaced at each step, in [0, 1] (paper: tuned, 1e-4 or 1e-5;
            its tables call it τ).
        maturity: m, steps for which a new unit is safe, at least 0 (paper: tuned, 100 or 1000).
        decay: η of the running averages, in [0, 1).
        start_chunk: Do nothing before the data has changed this often (paper, warm start: 1).
        compensate: Put the mean output of a replaced unit into the bias of the layers after it, where they have one.
        where: The units to act on. Default: `HiddenUnits()`, all that can be resolved.
        forward: Runs the module on a batch, to find its units. Default: its `loss_on`, otherwise `training_step`.
        seed: Seed of the new draws, the same on every rank.
        name: Prefix of the logged keys in the place of `continual_backprop`.

    Raises:
        ValueError: If an argument is out of range, or, when training starts, if `where` finds no units.
        MisconfigurationException: When training starts, if the module optimises manually and has no `loss_on`, and
            `forward` is not given.
    """

    name = "continual_backprop"

    def __init__(
        self,
        replacement_rate: float = 1e-4,
        maturity: int = 100,
        decay: float = 0.99,
        start_chunk: int = 0,
        compensate: bool = True,
        where: HiddenUnits | None = None,
        forward: Forward | None = None,
        seed: int = 0,
        name: str | None = None,
    ):
        super().__init__(name, where=where, start_chunk=start_chunk, forward=forward, seed=seed)
        if not 0 <= replacement_rate <= 1:
            raise ValueError(f"`replacement_rate` must be in [0, 1], got {replacement_rate}")
        if maturity < 0:
            raise ValueError(f"`maturity` must be at least 0, got {maturity}")
        if not 0 <= decay < 1:
            raise ValueError(f"`decay` must be in [0, 1), got {decay}")
        self.replacement_rate, self.maturity, self.decay, self.compensate = (
            replacement_rate,
            maturity,
            decay,
            compensate,
        )

    def new_record(self, layer: UnitLayer, saved: Mapping[str, Any] | None, device: torch.device) -> "_Record":
        return _Record.of(layer, saved, device)

    def choose(self, trainer: Trainer) -> list[tuple[UnitLayer, Tensor]]:
        means = torch.cat([torch.stack([r.total_abs, r.total]) / max(r.count, 1) for r in self.records], dim=1)
        means = trainer.strategy.reduce(means, reduce_op="mean").split([layer.size for layer in self.layers], dim=1)
        chosen = []
        for layer, record, (mean_abs, mean) in zip(self.layers, self.records, means, strict=True):
            record.update(contribution_utility(mean_abs, _outgoing_magnitude(layer)), mean, self.decay)
            units = record.choose(self.replacement_rate, self.maturity, self.decay)
            if not len(units):
                continue
            if self.compensate:
                _compensate(layer, units, record.corrected(record.mean, self.decay))
            record.begin(units)
            chosen.append((layer, units))
        return chosen


@dataclass
class _Record:
    """What is known of the units of a layer; every tensor has the shape `(units,)`.

    Attributes:
        utility: Running average of the utility, not corrected for its start at 0.
        mean: Running average of the mean output, likewise.
        age: Steps since the unit began; on the CPU, so that nothing waits for the GPU.
        owed: Units owed to a new beginning, a fraction.
        total_abs: Sum of |h| over the samples and places since the last step.
        total: Sum of h over the same.
        count: How many those are.
    """

    utility: Tensor
    mean: Tensor
    age: Tensor
    owed: float
    total_abs: Tensor
    total: Tensor
    count: int = 0

    @classmethod
    def of(cls, layer: UnitLayer, saved: Mapping[str, Any] | None, device: torch.device) -> "_Record":
        """Begin, or go on with what `saved` returned."""
        zeros = torch.zeros(layer.size)
        saved = saved or {"utility": zeros, "mean": zeros, "age": zeros.long(), "owed": 0.0}
        return cls(
            utility=saved["utility"].to(device, copy=True),
            mean=saved["mean"].to(device, copy=True),
            age=saved["age"].clone(),
            owed=saved["owed"],
            total_abs=zeros.to(device, copy=True),
            total=zeros.to(device, copy=True),
        )

    def saved(self) -> dict[str, Any]:
        """Return what must last, on the CPU."""
        return {
            "utility": self.utility.cpu().clone(),
            "mean": self.mean.cpu().clone(),
            "age": self.age.clone(),
            "owed": self.owed,
        }

    def see(self, activity: Tensor, batch_size: int) -> None:
        """Add up outputs of the units, shape `(samples, units)`."""
        self.total_abs += torch.linalg.vector_norm(activity, ord=1, dim=0, dtype=torch.float32)
        self.total += activity.sum(0, dtype=torch.float32)
        self.count += len(activity)

    def update(self, utility: Tensor, mean: Tensor, decay: float) -> None:
        """Bring the running averages up to date with those of this step; what is not finite would stay in them."""
        finite = utility.isfinite() & mean.isfinite()
        self.utility.lerp_(torch.where(finite, utility, self.utility), 1 - decay)
        self.mean.lerp_(torch.where(finite, mean, self.mean), 1 - decay)
        self.age += 1
        self.total_abs.zero_()
        self.total.zero_()
        self.count = 0

    def corrected(self, average: Tensor, decay: float) -> Tensor:
        """Return a running average without the pull of its start at 0."""
        return average / (1 - decay ** self.age.to(average.device, torch.float32))

    def choose(self, rate: float, maturity: int, decay: float) -> Tensor:
        """Return the units to replace at this step, int64 (n,)."""
        eligible = self.age > maturity
        self.owed += rate * int(eligible.sum())
        number = int(self.owed)
        if not number:
            return torch.empty(0, dtype=torch.int64)
        self.owed -= number
        device = self.utility.device
        return least_useful(self.corrected(self.utility, decay), eligible.to(device), number)

    def begin(self, units: Tensor) -> None:
        """Forget units that begin anew."""
        self.utility[units], self.mean[units] = 0.0, 0.0
        self.age[units.cpu()] = 0


def _outgoing_magnitude(layer: UnitLayer) -> Tensor:
    """Return the sum of the absolute outgoing weights of each unit, shape `(units,)`."""
    sums: Sequence[Tensor] = [
        outgoing.view.read().abs().transpose(0, 1).flatten(1).sum(1).view(layer.size, outgoing.block).sum(1)
        for outgoing in layer.outgoing
    ]
    return torch.stack(list(sums)).sum(0).float()


def _compensate(layer: UnitLayer, units: Tensor, mean: Tensor) -> None:
    """Put what units say on average into the biases of the layers after them."""
    for outgoing in layer.outgoing:
        if outgoing.bias is not None:
            weights = outgoing.view.read()[:, outgoing.columns(units)]  # (out, inputs of the units, *kernel)
            weights = weights.flatten(2).sum(2) if weights.ndim > 2 else weights
            outgoing.bias.add_(weights @ mean[units].repeat_interleave(outgoing.block).to(weights.dtype))
