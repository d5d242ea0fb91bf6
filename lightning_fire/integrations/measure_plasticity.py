"""Metrics of plasticity, as a method that changes nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lightning_fire.functional import dormant, entropy_rank_of, singular_values_of_gram, srank_of, stable_rank_of
from lightning_fire.integrations.base import say
from lightning_fire.methods import Attached, StepMethod, Training
from lightning_fire.methods.base.change import measurable
from lightning_fire.methods.base.report import health
from lightning_fire.methods.base.unit_reset import run_watched
from lightning_fire.methods.base.unit_scores import mean_activities
from lightning_fire.where import HiddenUnits, UnitLayer, weight_layers

__all__ = ["MeasurePlasticity"]


@dataclass(frozen=True)
class MeasurePlasticity(StepMethod):
    """Measures what the `PlasticityMonitor` of Lightning logs, and changes nothing.

    Of the weights: `plasticity/dfi_normalized` and `plasticity.raw/dfi`, means over the weights, and
    `plasticity/weight_norm`. Of the network on one batch of its training data: `plasticity/dormant_fraction` of its
    hidden units; `plasticity/srank`, `plasticity/stable_rank` and `plasticity/entropy_rank` of the features that its
    last layer gets. Without units that can be resolved, or without a way to run the model, the weights alone.

    Args:
        dormancy_threshold: τ: a unit is dormant if its mean |activation| is at most τ times that of its layer.

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
        if self.dormancy_threshold < 0:
            raise ValueError(f"`dormancy_threshold` must be at least 0, got {self.dormancy_threshold}")

    def begin(self, model: nn.Module, training: Training) -> "_Measuring":
        """Find the hidden units."""
        return _Measuring(self, model, training)


class _Measuring(Attached):
    def __init__(self, method: MeasurePlasticity, model: nn.Module, training: Training):
        self.model, self.training, self.threshold = model, training, method.dormancy_threshold
        self.layers: Sequence[UnitLayer] = ()
        try:
            self.layers = HiddenUnits().select(model, partial(training.forward, 1))
        except ValueError as error:
            say(f"plasticity/dormant_fraction is not logged: {error}.")

    @torch.no_grad()
    def metrics(self) -> dict[str, float]:
        """Return the metrics of the weights and of the network on a batch; that of the scale begins with `.raw`."""
        weights = measurable(self.model, set(self.model.parameters()))
        report = health(weights) if weights else None
        values = {} if report is None else {**report.values, ".raw/dfi": report.raw["dfi"]}
        if self.layers:
            values["dormant_fraction"] = self._dormant_fraction()
            singular = singular_values_of_gram(self._gram_of_last_features())
            values["srank"], values["stable_rank"] = float(srank_of(singular)), float(stable_rank_of(singular))
            values["entropy_rank"] = float(entropy_rank_of(singular))
        return values

    def _dormant_fraction(self) -> float:
        means = mean_activities(self.layers, partial(self.training.forward, 1))
        found = [dormant(each, self.threshold) for each in means.split([layer.size for layer in self.layers])]
        return float(torch.cat(found).float().mean())

    def _gram_of_last_features(self) -> Tensor:
        """Return hᵀh of the inputs h of the layer that runs last with gradients, (features, features), float64."""
        seen: list[Tensor] = []

        def watch(layer: nn.Module, args: tuple[Any, ...]) -> None:
            if torch.is_grad_enabled():
                kernel = 0 if isinstance(layer, nn.Linear) else len(getattr(layer, "kernel_size", ()))
                value = args[0].detach().movedim(-1 - kernel, -1)
                seen[:] = [value.reshape(-1, value.shape[-1])]

        handles = [layer.register_forward_pre_hook(watch) for layer in weight_layers(self.model)]
        run_watched(partial(self.training.forward, 1), handles)
        features = seen[0].to("cpu" if seen[0].device.type == "mps" else seen[0].device, torch.float64)
        return features.mT @ features
