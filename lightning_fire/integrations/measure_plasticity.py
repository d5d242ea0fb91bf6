"""Metrics of plasticity, as a method that changes nothing."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lightning_fire.distributed import mean_over_ranks
from lightning_fire.functional.checks import at_least
from lightning_fire.integrations.base import say, undisturbed
from lightning_fire.messages import tell_once
from lightning_fire.methods import Attached, Loop, StepMethod
from lightning_fire.methods.base.loop import gradients_of
from lightning_fire.methods.base.one_step import readiness, sharpness_along
from lightning_fire.methods.base.plasticity import (
    gram_of_last_features,
    report_of_features,
    report_of_units,
    report_of_weights,
)
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

    def begin(self, model: nn.Module, training: Loop) -> "_Measuring":
        """Find the hidden units."""
        return _Measuring(self, model, training)


class _Measuring(Attached):
    def __init__(self, method: MeasurePlasticity, model: nn.Module, training: Loop):
        self.model, self.training, self.threshold = model, training, method.dormancy_threshold
        self.layers: Sequence[UnitLayer] | None = None  # before they are looked for
        self.missing: set[str] = set()  # what cannot be measured
        self._try("dormant_fraction", self._units)

    @torch.no_grad()
    def metrics(self) -> dict[str, float]:
        """Return the metrics of the weights and of the network on a batch; a scale-dependent one starts with `.raw`."""
        weights = report_of_weights(self.model)
        values = {**weights.values, **{f".raw/{name}": value for name, value in weights.raw.items()}}
        values |= self._try("dormant_fraction", self._units) | self._try("srank and other ranks", self._ranks)
        values |= self._try("readiness", self._readiness)
        return values | self._try("critical_sharpness", self._critical_sharpness)

    def _try(self, name: str, measure: Callable[[], Mapping[str, float]]) -> dict[str, float]:
        """Measure, or log once per model why not: each `learn` of Stable-Baselines3 attaches the method again."""
        if name in self.missing:
            return {}
        try:
            with undisturbed(self.model):
                return dict(measure())
        except (ValueError, RuntimeError) as error:
            self.missing.add(name)
            tell_once(self.model, f"plasticity/{name} {'are' if ' ' in name else 'is'} not logged: {error}.", say)
            return {}

    def _units(self) -> Mapping[str, float]:
        if self.layers is None:
            self.layers = HiddenUnits().select(self.model, self.training.run)
            return {}
        means = mean_activities(self.layers, self.training.run)
        return report_of_units(self.layers, means, self.threshold).values

    def _ranks(self) -> Mapping[str, float]:
        return report_of_features(gram_of_last_features(self.model, [self.training.run])).values

    def _readiness(self) -> Mapping[str, float]:
        self.model.eval()
        gradients: Any = self.training.gradients(self._parameters, _BATCHES)
        with closing(gradients):
            return {"readiness": readiness(islice(gradients, _BATCHES), self._mean, self.training.ranks or 1)}

    def _critical_sharpness(self) -> Mapping[str, float]:
        self.model.eval()
        compute = self.training.loss_function()

        def loss() -> Tensor:
            with undisturbed(self.model):  # equal random draws each time
                return compute()

        with undisturbed(self.model):
            gradient = list(map(self._mean, gradients_of(compute(), self._parameters)))
        return {"critical_sharpness": sharpness_along(gradient, self._parameters, loss, self._mean).value}

    @property
    def _parameters(self) -> list[Tensor]:
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def _mean(self, tensor: Tensor) -> Tensor:
        return mean_over_ranks(tensor, self.training.ranks or 1)
