"""SNR: self-normalized resets (Farias and Jozefiak, ICLR 2025)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lightning_fire.distributed import sum_over_ranks, to_device
from lightning_fire.functional import NEVER, inter_firing_threshold
from lightning_fire.functional.checks import at_least, one_of
from lightning_fire.methods.base.change import Change
from lightning_fire.methods.base.loop import Loop
from lightning_fire.methods.base.method import StepMethod
from lightning_fire.methods.base.unit_reset import OfUnits, Output, StepwiseReset, units_in
from lightning_fire.where import HiddenUnits, UnitLayer


@dataclass(frozen=True)
class SelfNormalizedReset(OfUnits, StepMethod):
    """Re-initializes hidden units whose current inter-firing interval is improbable given their past ones.

    A unit fires on a batch if its output is above 0 at any sample and position. Its inter-firing intervals, in samples,
    are recorded. After an optimizer step a unit is re-initialized as in `ReDo` if P(interval ≥ a) ≤ τ, where a is the
    time since it last fired. Logs `units`, the number of units reset so far, and `threshold`, the largest allowed
    inter-firing interval in samples, mean over the units.

    Args:
        rejection: τ, in (0, 1) (FIRE paper: tuned, 0.01 to 0.08; the SNR paper calls it η).
        refresh_every: Number of optimizer steps between updates of each unit's threshold from the intervals since the
            last update (FIRE's authors: 16; SNR's: a task). Memory: 8 bytes per unit and step.
        max_silence: Largest threshold, in samples; thresholds start at half of it (FIRE's authors: 20000).
        expansion: Factor by which a threshold grows if more than a fraction τ of the intervals is longer.
        where: The units to act on. Default: `HiddenUnits()`, all that can be resolved.
        seed: Seed of the new weights, the same on every rank.
        score: The output by which a unit fires: `"activation"`, after normalization and nonlinearity (SNR);
            `"pre_activation"`, before both (the code of the FIRE paper's authors).

    Raises:
        TypeError: If `where` is a selection of a wrong kind.
        ValueError: If an argument is out of range.

    Example:
        >>> from lightning_fire.methods import Loop
        >>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
        >>> _ = nn.init.constant_(model[0].bias, -100.0)
        >>> optimizer, x = torch.optim.SGD(model.parameters()), torch.rand(16, 2)
        >>> loop = Loop(optimizer, forward=lambda: model(x))
        >>> method = SelfNormalizedReset(max_silence=64).attach(model, loop)
        >>> for _ in range(3):
        ...     model(x).square().mean().backward()
        ...     optimizer.step()
        ...     method.after_step()
        >>> method.metrics()["units"]
        8.0
    """

    name: ClassVar[str] = "snr"

    rejection: float = 0.02
    refresh_every: int = 16
    max_silence: int = 20000
    expansion: float = 2.0
    where: HiddenUnits | None = None
    seed: int = 0
    score: Output = "activation"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.rejection < 1:
            raise ValueError(f"`rejection` must be between 0 and 1, got {self.rejection}")
        at_least(1, refresh_every=self.refresh_every)
        at_least(2, max_silence=self.max_silence)
        at_least(1, whole=False, expansion=self.expansion)
        one_of(Output, score=self.score)

    def begin(self, model: nn.Module, training: Loop) -> "_Resets":
        """Find the units and start to watch them."""
        return _Resets(self, model, training)


class _Resets(StepwiseReset["_Intervals"]):
    """SNR attached to a model."""

    def __init__(self, method: SelfNormalizedReset, model: nn.Module, training: Loop):
        self.method = method
        super().__init__(model, training, method.where, method.seed, method.score)

    def metrics(self) -> dict[str, float]:
        """Return the units reset so far, and the mean of the largest allowed inter-firing intervals, in samples."""
        thresholds = torch.cat([each.threshold.to(self.statistics[0].age.device) for each in self.statistics]).float()
        return {**super().metrics(), "threshold": float(thresholds.mean())}

    def new_statistics(self, layer: UnitLayer, device: torch.device, state: Mapping[str, Any]) -> "_Intervals":
        """Return the statistics of a layer, see `StepwiseReset`."""
        return _Intervals(layer.size, device, state, self.method.max_silence // 2)

    def choose(self) -> list[tuple[UnitLayer, Tensor]]:
        """Update the intervals after a step; return the units to re-initialize."""
        sizes = [layer.size for layer in self.layers]
        device = self.statistics[0].age.device  # a model may be on several devices
        counts = to_device(torch.tensor([float(each.count) for each in self.statistics], device="cpu"), device)
        seen = torch.cat([*(each.fired.float().to(device) for each in self.statistics), counts])
        *fired, counts = sum_over_ranks(seen, self.training.ranks).split([*sizes, len(sizes)])
        silent_too_long = []
        for statistics, on_any_rank, samples in zip(self.statistics, fired, counts.long(), strict=True):
            statistics.end_step((on_any_rank > 0).to(statistics.age.device), samples.to(statistics.age.device))
            if statistics.steps == self.method.refresh_every:
                statistics.refresh(self.method.rejection, self.method.expansion, self.method.max_silence)
            silent_too_long.append(statistics.age > statistics.threshold.maximum(statistics.largest))
        chosen = units_in(silent_too_long, self.layers)
        return chosen if any(len(units) for _, units in chosen) else []

    def forgetting(self, chosen: Sequence[tuple[UnitLayer, Tensor]]) -> Change:
        """Change that restarts the intervals of the chosen units."""
        restarted = [
            (each, each.without(torch.zeros_like(each.fired).index_fill(0, units, True)))
            for each, (_, units) in zip(self.statistics, chosen, strict=True)
        ]

        def forget() -> None:
            for statistics, (intervals, age) in restarted:
                statistics.intervals, statistics.age = intervals, age

        return Change(then=[forget])


class _Intervals:
    """Statistics of the units of a layer: tensors of shape (units,), `largest` a scalar; times in samples.

    `age` is the time since a unit last fired or was reset, `threshold` the largest allowed age. `intervals` has one
    tensor for each step since the last refresh, and one more for each reset: the age of units that fired or were reset
    in it, otherwise `NEVER`. `largest` is the largest step so far, a lower bound of thresholds.
    """

    def __init__(self, size: int, device: torch.device, state: Mapping[str, Any], first_threshold: int):
        zeros = torch.zeros(size, dtype=torch.int64, device="cpu")
        threshold, largest = zeros + first_threshold, torch.tensor(0, device="cpu")
        state = state or dict(age=zeros, threshold=threshold, silences=[], largest=largest, steps=0)
        self.age: Tensor = to_device(state["age"].clone(), device)
        self.threshold: Tensor = to_device(state["threshold"].clone(), device)
        self.intervals = [to_device(row.clone(), device) for row in state["silences"]]
        self.largest: Tensor = to_device(state["largest"].clone(), device)
        self.steps: int = state["steps"]  # since the last refresh
        self.fired = torch.zeros(size, dtype=torch.bool, device=device)  # since the last step
        self.count = 0  # samples since then

    def state_dict(self) -> dict[str, Any]:
        intervals = torch.stack(self.intervals) if self.intervals else self.age[:0].view(0, 0)
        return {
            "age": self.age.cpu().clone(),
            "threshold": self.threshold.cpu().clone(),
            "silences": intervals.cpu(),
            "largest": self.largest.cpu().clone(),
            "steps": self.steps,
        }

    def update(self, activity: Tensor, batch_size: int) -> None:
        self.fired |= (activity.amax(0) > 0).to(self.fired.device)  # the next layer may be on another device
        self.count += batch_size

    def end_step(self, fired: Tensor, samples: Tensor) -> None:
        self.intervals.append(torch.where(fired, self.age, NEVER))
        self.age = torch.where(fired, 0, self.age + samples)
        self.largest = self.largest.maximum(samples)
        self.steps += 1
        self.fired.zero_()
        self.count = 0

    def refresh(self, rejection: float, expansion: float, longest: int) -> None:
        fresh = inter_firing_threshold(torch.stack(self.intervals, dim=1), self.threshold, rejection, expansion)
        self.threshold = fresh.clamp_max(longest).maximum(self.largest)
        self.intervals, self.steps = [], 0

    def without(self, mask: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return intervals and ages with some units restarted; their unfinished intervals are recorded."""
        return [*self.intervals, torch.where(mask, self.age, NEVER)], torch.where(mask, 0, self.age)
