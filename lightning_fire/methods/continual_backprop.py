"""Continual backprop (Dohare et al., Nature 2024)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lightning_fire.distributed import mean_over_ranks, to_device
from lightning_fire.functional import contribution_utility, least_useful
from lightning_fire.functional.checks import at_least, full_precision, one_of
from lightning_fire.methods.base.change import Change
from lightning_fire.methods.base.loop import Loop
from lightning_fire.methods.base.method import StepMethod
from lightning_fire.methods.base.unit_reset import OfUnits, Output, StepwiseReset
from lightning_fire.where import HiddenUnits, UnitLayer


@dataclass(frozen=True)
class ContinualBackprop(OfUnits, StepMethod):
    """Re-initializes, after each optimizer step, a small fraction of the least useful hidden units.

    The utility of a unit is an exponential moving average (EMA) of mean |h| · Σ |outgoing weights|, where h is its
    output. At each step a layer accumulates `replacement_rate` times its number of units older than `maturity` steps;
    whenever that sum reaches 1, the unit with the lowest utility is re-initialized as in `ReDo`. Its mean output is
    added to the bias of the next layers. Logs `units`, the number of units replaced so far.

    Args:
        replacement_rate: ρ, fraction of the mature units replaced at each step, in [0, 1] (FIRE paper: tuned, 1e-4 or
            1e-5; its tables call it τ).
        maturity: m, number of steps during which a new unit is not replaced, at least 0 (FIRE paper: tuned, 100 or
            1000).
        decay: η of the exponential moving averages (EMA), in [0, 1).
        compensate: Add the mean output of a replaced unit, after normalization and nonlinearity, to the bias of the
            next layers, if they have one.
        where: The units to act on. Default: `HiddenUnits()`, all that can be resolved.
        seed: Seed of the new weights, the same on every rank.
        score: The output in the utility: `"activation"`, after normalization and nonlinearity (continual backprop);
            `"pre_activation"`, before both (the code of the FIRE paper's authors).

    Raises:
        TypeError: If `where` is a selection of a wrong kind.
        ValueError: If an argument is out of range.

    Example:
        >>> from lightning_fire.methods import Loop
        >>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
        >>> optimizer, x = torch.optim.Adam(model.parameters()), torch.rand(16, 2)
        >>> loop = Loop(optimizer, forward=lambda: model(x))
        >>> method = ContinualBackprop(replacement_rate=0.1, maturity=0).attach(model, loop)
        >>> for _ in range(3):
        ...     model(x).square().mean().backward()
        ...     optimizer.step()
        ...     method.after_step()
        >>> method.metrics()
        {'units': 2.0}
    """

    name: ClassVar[str] = "continual_backprop"

    replacement_rate: float = 1e-4
    maturity: int = 100
    decay: float = 0.99
    compensate: bool = True
    where: HiddenUnits | None = None
    seed: int = 0
    score: Output = "activation"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.replacement_rate <= 1:
            raise ValueError(f"`replacement_rate` must be in [0, 1], got {self.replacement_rate}")
        at_least(0, maturity=self.maturity)
        if not 0 <= self.decay < 1:
            raise ValueError(f"`decay` must be in [0, 1), got {self.decay}")
        one_of(Output, score=self.score)

    def begin(self, model: nn.Module, training: Loop) -> "_Replacement":
        """Find the units and start to watch them."""
        return _Replacement(self, model, training)


class _Replacement(StepwiseReset["_Utilities"]):
    """Continual backprop attached to a model."""

    def __init__(self, method: ContinualBackprop, model: nn.Module, training: Loop):
        self.rate, self.maturity, self.decay = method.replacement_rate, method.maturity, method.decay
        self.compensate = method.compensate
        super().__init__(model, training, method.where, method.seed, method.score)
        if method.compensate and method.score != "activation":
            self.watch("activation", "add_activity")

    def new_statistics(self, layer: UnitLayer, device: torch.device, state: Mapping[str, Any]) -> "_Utilities":
        """Return the statistics of a layer, see `StepwiseReset`."""
        return _Utilities(layer.size, device, state, self.score == "activation")

    def choose(self) -> list[tuple[UnitLayer, Tensor]]:
        """Update the utilities after a step; return the units to re-initialize."""
        device = self.statistics[0].sum.device  # a model may be on several devices
        seen = [
            torch.stack([each.sum_abs / max(each.count, 1), each.sum / max(each.activities, 1)]).to(device)
            for each in self.statistics
        ]
        means = mean_over_ranks(torch.cat(seen, dim=1), self.training.ranks).split(
            [layer.size for layer in self.layers], dim=1
        )
        chosen = []
        for layer, statistics, (mean_abs, mean) in zip(self.layers, self.statistics, means, strict=True):
            utility = contribution_utility(mean_abs, _outgoing_magnitude(layer).to(device))
            statistics.end_step(utility.to(statistics.mean), mean.to(statistics.mean), self.decay)
            units = statistics.choose(self.rate, self.maturity, self.decay)
            if len(units):
                chosen.append((layer, units))
        return chosen

    def forgetting(self, chosen: Sequence[tuple[UnitLayer, Tensor]]) -> Change:
        """Change that adds the lost output of the chosen units to biases and restarts their statistics."""
        by_layer = {layer.name: each for layer, each in zip(self.layers, self.statistics, strict=True)}
        found = [(by_layer[layer.name], layer, units) for layer, units in chosen]
        biases: dict[Tensor, Tensor] = {}
        for own, layer, units in found if self.compensate else ():
            for bias, output in _lost_output(layer, units, own.corrected(own.mean, self.decay)):
                biases[bias] = biases.get(bias, bias.detach()) + output

        numbers = [len(units) for *_, units in found]
        indices = torch.cat([units.to(found[0][2].device) for *_, units in found]).cpu().split(numbers)  # one wait

        def forget() -> None:
            for (statistics, _, units), of_cpu in zip(found, indices, strict=True):
                statistics.forget(units, of_cpu)

        return Change(biases, then=[forget])


class _Utilities:
    """Statistics of shape (units,): EMAs of `utility` and `mean` output, not bias-corrected, and more.

    `age` is in steps and on the CPU, so that nothing waits for the GPU; `owed` is the accumulated fraction of a unit to
    replace.
    """

    def __init__(self, size: int, device: torch.device, state: Mapping[str, Any], scores_activity: bool):
        zeros = torch.zeros(size, device="cpu")
        state = state or {"utility": zeros, "mean": zeros, "age": zeros.long(), "owed": 0.0}
        self.utility: Tensor = to_device(state["utility"].clone(), device)
        self.mean: Tensor = to_device(state["mean"].clone(), device)
        self.age: Tensor = state["age"].clone()
        self.owed: float = state["owed"]
        self.scores_activity = scores_activity  # whether `update` gets h, whose mean is `mean`
        self.sum_abs, self.sum = torch.zeros(2, size, device=device)  # of the scored output and of h since a step
        self.count = self.activities = 0  # samples and positions in them

    def state_dict(self) -> dict[str, Any]:
        averages = {"utility": self.utility.cpu().clone(), "mean": self.mean.cpu().clone()}
        return {**averages, "age": self.age.clone(), "owed": self.owed}

    def update(self, activity: Tensor, batch_size: int) -> None:
        dtype = torch.promote_types(activity.dtype, torch.float32)
        size = torch.linalg.vector_norm(activity, ord=1, dim=0, dtype=dtype)
        self.sum_abs += size.to(self.sum_abs)  # the next layer may be on another device
        self.count += len(activity)
        if self.scores_activity:
            self.add_activity(activity, batch_size)

    def add_activity(self, activity: Tensor, batch_size: int) -> None:
        self.sum += activity.sum(0, dtype=torch.float32).to(self.sum.device)
        self.activities += len(activity)

    def end_step(self, utility: Tensor, mean: Tensor, decay: float) -> None:
        """Update the averages with the finite values of this step: others would stay in them."""
        finite = utility.isfinite() & mean.isfinite()
        self.utility.lerp_(torch.where(finite, utility, self.utility), 1 - decay)
        self.mean.lerp_(torch.where(finite, mean, self.mean), 1 - decay)
        self.age += 1
        self.sum_abs.zero_()
        self.sum.zero_()
        self.count = self.activities = 0

    def corrected(self, average: Tensor, decay: float) -> Tensor:
        return average / (1 - decay ** to_device(self.age.float(), average.device))

    def choose(self, rate: float, maturity: int, decay: float) -> Tensor:
        eligible = self.age > maturity
        self.owed += rate * int(eligible.sum())
        number = int(self.owed)
        self.owed -= number
        if not number:
            return torch.empty(0, dtype=torch.int64, device="cpu")
        return least_useful(self.corrected(self.utility, decay), eligible, number)

    def forget(self, units: Tensor, of_cpu: Tensor) -> None:
        """Restart the statistics of some units, whose indices are also given on the CPU."""
        units = units.to(self.mean.device)
        self.utility[units], self.mean[units] = 0.0, 0.0
        self.age[of_cpu] = 0


def _outgoing_magnitude(layer: UnitLayer) -> Tensor:
    """Return the sum of the absolute outgoing weights of each unit, of shape (units,)."""
    sums = [
        outgoing.view.read().abs().transpose(0, 1).flatten(1).sum(1).view(layer.size, outgoing.block).sum(1)
        for outgoing in layer.outgoing
    ]
    return torch.stack([each.to(sums[0].device) for each in sums]).sum(0).float()


@full_precision
def _lost_output(layer: UnitLayer, units: Tensor, mean: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return the biases of the next layers, each with what the mean outputs of units add to it."""
    found: list[tuple[Tensor, Tensor]] = []
    lost = mean[units.to(mean.device)]
    for outgoing in layer.outgoing:
        if outgoing.bias is not None:
            weights = outgoing.view.read()  # (out, in, *kernel), its units next
            weights = weights[:, outgoing.columns(units).to(weights.device)]
            weights = weights.flatten(2).sum(2) if weights.ndim > 2 else weights
            found.append((outgoing.bias, weights @ lost.repeat_interleave(outgoing.block).to(weights)))
    return found
