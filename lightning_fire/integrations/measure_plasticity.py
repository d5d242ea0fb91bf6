"""Metrics of plasticity, as a method that changes nothing."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

import torch
from torch import Tensor, nn

from lightning_fire.distributed import mean_over_ranks
from lightning_fire.functional.checks import at_least
from lightning_fire.integrations.base import say, undisturbed
from lightning_fire.messages import tell_once
from lightning_fire.methods import Attached, StepMethod, Training
from lightning_fire.methods.base.one_step import readiness, sharpness_along
from lightning_fire.methods.base.plasticity import (
    gram_of_last_features,
    report_of_features,
    report_of_units,
    report_of_weights,
)
from lightning_fire.methods.base.training import gradients_of
from lightning_fire.methods.base.unit_scores import mean_activities
from lightning_fire.where import HiddenUnits, UnitLayer

__all__ = ["MeasurePlasticity"]

_BATCHES = 4  # for the gradients of the readiness


@dataclass(frozen=True)
class MeasurePlasticity(StepMethod):
    """Measures the metrics of Lightning's `PlasticityMonitor` and changes nothing.

    Weights: `plasticity/dfi_normalized` and `plasticity.raw/dfi`, means over the weights, and `plasticity/weight_norm`.
    Network, on one batch of its training data: `plasticity/dormant_fraction` of its hidden units; `plasticity/srank`,
    `plasticity/stable_rank` and `plasticity/entropy_rank` of the inputs of its last layer. Loss:
    `plasticity/readiness`, from its gradients on 4 batches, and `plasticity/critical_sharpness` on one batch, which
    takes a gradient and at most 10 forward passes. On several ranks both use means over ranks, and every rank must call
    `metrics`. A metric that cannot be measured is left out, with the reason logged once per model: only weights are
    measured without a way to run the model, and Stable-Baselines3 has no critical sharpness, as it cannot compute its
    loss at other weights.

    Args:
        dormancy_threshold: τ: a unit is dormant if its mean |activation| is at most τ times the mean of its layer.

    Raises:
        ValueError: If `dormancy_threshold` is negative.

    Example:
        >>> from lightning_fire.methods import Loop
        >>> model, x = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1)), torch.rand(16, 2)
        >>> sorted(MeasurePlasticity().attach(model, Loop(forward=lambda: model(x))).metrics())[:3]
        ['.raw/dfi', 'dfi_normalized', 'dormant_fraction']
    """

    name: ClassVar[str] = "plasticity"
    only_measures: ClassVar[bool] = True

    dormancy_threshold: float = 0.025

    def __post_init__(self) -> None:
        at_least(0, whole=False, dormancy_threshold=self.dormancy_threshold)

    def begin(self, model: nn.Module, training: Training) -> "_Measuring":
        """Find the hidden units."""
        return _Measuring(self, model, training)


class _Measuring(Attached):
    def __init__(self, method: MeasurePlasticity, model: nn.Module, training: Training):
        self.model, self.training, self.threshold = model, training, method.dormancy_threshold
        self.layers: Sequence[UnitLayer] = ()
        self.told: set[str] = set()  # if it cannot be measured
        try:
            self.layers = HiddenUnits().select(model, training.forward)
        except ValueError as error:
            self._tell(f"plasticity/dormant_fraction is not logged: {error}.")

    @torch.no_grad()
    def metrics(self) -> dict[str, float]:
        """Return the metrics of the weights and of the network on a batch; a scale-dependent one starts with `.raw`."""
        weights, forward = report_of_weights(self.model), self.training.forward
        values = {**weights.values, **{f".raw/{name}": value for name, value in weights.raw.items()}}
        if self.layers:
            values |= report_of_units(self.layers, mean_activities(self.layers, forward), self.threshold).values
        values |= self._ranks(forward)
        for name, measure in (("readiness", self._readiness), ("critical_sharpness", self._critical_sharpness)):
            if name in self.told:
                continue
            try:
                with undisturbed(self.model):
                    self.model.eval()
                    values[name] = measure([p for p in self.model.parameters() if p.requires_grad])
            except (ValueError, RuntimeError) as error:
                self.told.add(name)
                self._tell(f"plasticity/{name} is not logged: {error}.")
        return values

    def _ranks(self, forward: Callable[[], None]) -> dict[str, float]:
        if "ranks" in self.told:
            return {}
        try:
            return dict(report_of_features(gram_of_last_features(self.model, [torch.enable_grad()(forward)])).values)
        except ValueError as error:
            self.told.add("ranks")
            self._tell(f"plasticity/srank and other ranks are not logged: {error}.")
            return {}

    def _tell(self, message: str) -> None:
        """Log a message once per model: each `learn` of Stable-Baselines3 attaches the method again."""
        tell_once(self.model, message, say)

    def _mean(self, tensor: Tensor) -> Tensor:
        return mean_over_ranks(tensor, self.training.ranks)

    def _readiness(self, parameters: Sequence[Tensor]) -> float:
        with closing(self.training.gradients(parameters, _BATCHES)) as gradients:  # type: ignore[type-var]
            return readiness(islice(gradients, _BATCHES), self._mean, self.training.ranks)

    def _critical_sharpness(self, parameters: Sequence[Tensor]) -> float:
        if not hasattr(self.training, "loss_function"):
            raise ValueError("the loss cannot be computed at other weights here")
        compute = self.training.loss_function()

        def loss() -> Tensor:
            with undisturbed(self.model):  # equal random draws each time
                value: Tensor = compute()
                return value

        with undisturbed(self.model):
            gradient = list(map(self._mean, gradients_of(compute(), parameters)))
        return sharpness_along(gradient, parameters, loss, self._mean).value
