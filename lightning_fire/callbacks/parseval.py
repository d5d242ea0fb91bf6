"""Parseval regularisation: a pull towards orthogonal rows (Chung et al., NeurIPS 2024)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn.modules.batchnorm import _NormBase

from lightning_fire.callbacks.base.penalty import PenaltyCallback
from lightning_fire.functional import (
    parseval_gradient,
    parseval_penalty,
    unit_scale_gradient,
    unit_scale_penalty,
)
from lightning_fire.where import Weights, WeightView

_NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm)


class Parseval(PenaltyCallback):
    """Adds λ·Σ ‖WWᵀ − s·I‖_F² to the loss, over the selected weights.

    Logs `parseval/penalty`, λ included, at the end of each epoch in which it acts.

    Args:
        strength: λ, the factor of the penalty.
        scale: s: the squared singular value that the rows are pulled to. Paper: 1. The method's authors: 2.
        start_chunk: Do nothing before the data has changed this often (paper, warm start: 1).
        where: The weights it is on. Default: `Weights(preset="cnn")`, every Linear and convolution weight.
        norms: Also pull the scales γ of normalisation layers to ±1, by λ·Σ (γ² − 1)², as the authors of the FIRE paper
            do in their code.
        name: Prefix of the logged keys in the place of `parseval`.

    Raises:
        ValueError: If an argument is out of range, or, before training, if `where` matches no weight.
    """

    name = "parseval"

    def __init__(
        self,
        strength: float,
        scale: float = 1.0,
        start_chunk: int = 0,
        where: Weights | None = None,
        norms: bool = False,
        name: str | None = None,
    ):
        super().__init__(strength, start_chunk, name)
        if not scale > 0:
            raise ValueError(f"`scale` must be above 0, got {scale}")
        self.scale, self.norms = scale, norms
        self.where = where if where is not None else Weights(preset="cnn")
        self._views: dict[str, list[WeightView]] = {}

    def describe(self) -> str:
        return f"{super().describe()}, {self.where!r}"

    def show_selection(self, pl_module: LightningModule) -> str:
        scales = "\nand the scales of normalisation layers" if self.norms else ""
        return super().show_selection(pl_module) + scales

    def select(self, pl_module: LightningModule) -> Mapping[str, Parameter]:
        names: dict[Parameter, str] = {}
        self._views = {}
        for view in self.where.select(pl_module):
            self._views.setdefault(names.setdefault(view.parameter, view.name), []).append(view)
        weights = {name: parameter for parameter, name in names.items()}
        return weights | (_scales_of(pl_module) if self.norms else {})

    def penalty(self, name: str, weight: Tensor) -> Tensor:
        if name not in self._views:
            return unit_scale_penalty(weight)
        return sum(parseval_penalty(view.read(), self.scale, view.groups) for view in self._views[name])

    def gradients(self, names: Sequence[str], weights: Sequence[Tensor]) -> Sequence[Tensor]:
        return [self._gradient(name, weight) for name, weight in zip(names, weights, strict=True)]

    def _gradient(self, name: str, weight: Tensor) -> Tensor:
        if name not in self._views:
            return unit_scale_gradient(weight)
        gradient = torch.zeros_like(weight)
        for view in self._views[name]:  # one, or the selected parts of a fused weight
            replace(view, parameter=gradient).write(parseval_gradient(view.read(), self.scale, view.groups))
        return gradient


def _scales_of(module: nn.Module) -> dict[str, Parameter]:
    return {
        f"{name}.weight": layer.weight
        for name, layer in module.named_modules()
        if isinstance(layer, _NORMS) and layer.weight is not None and layer.weight.requires_grad
    }
