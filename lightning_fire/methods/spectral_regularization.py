"""Spectral regularization: a penalty that pulls largest singular values towards 1 (Lewandowski et al., ICLR 2025)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lightning_fire.distributed import to_device
from lightning_fire.functional import (
    bias_gradient,
    bias_penalty,
    power_iteration,
    spectral_gradient,
    spectral_penalty,
)
from lightning_fire.methods.base.loop import Loop
from lightning_fire.methods.base.penalty import Penalty, PenaltyMethod, views_of_weights
from lightning_fire.where import Weights, WeightView
from lightning_fire.where.layers import biases_beside

_FIRST_ITERATIONS = 10


@dataclass(frozen=True)
class SpectralRegularization(PenaltyMethod):
    """Adds λ·Σ ((σ₁(W)² − 1)² + ‖b‖⁴) to the loss, over the selected weights W and the biases b of their layers.

    The largest singular value σ₁ is estimated with one power iteration per step, continued from the last step. Logs
    `penalty`, λ included.

    Args:
        strength: λ, the factor of the penalty, at least 0.
        where: The penalized weights. Default: `Weights(preset="cnn", vectors=True)`, every Linear and convolution
            weight.

    Raises:
        TypeError: If `where` is a selection of a wrong kind.
        ValueError: If `strength` is below 0.

    Example:
        >>> model = nn.Linear(2, 2, bias=False)
        >>> _ = model.weight.data.copy_(torch.diag(torch.tensor([2.0, 0.0])))
        >>> method = SpectralRegularization(strength=0.5).attach(model)
        >>> method.metrics()
        {'penalty': 4.5}
        >>> model(torch.zeros(1, 2)).sum().backward()
        >>> method.before_step()
        >>> model.weight.grad
        tensor([[12.,  0.],
                [ 0.,  0.]])
    """

    name: ClassVar[str] = "spectral"
    default_where: ClassVar[Weights] = Weights(preset="cnn", vectors=True)

    strength: float
    where: Weights | None = None

    def table(self, model: nn.Module) -> str:
        """Show the weights, and that the biases of their layers are included."""
        return super().table(model) + "\nand the biases of their layers"

    def begin(self, model: nn.Module, training: Loop) -> "_SpectralPenalty":
        """Select the weights and compute the first estimates."""
        return _SpectralPenalty(model, self.strength, self.selection, training)


class _SpectralPenalty(Penalty):
    """Spectral regularization attached to a model.

    Attributes:
        vectors: Estimated right singular vectors by name of the weight, see `functional.spectral_penalty`.
    """

    def __init__(self, model: nn.Module, strength: float, where: Weights, training: Loop):
        self._views = views_of_weights(model, where, training)
        weights = {name: views[0].parameter for name, views in self._views.items()}
        biases = {bias for _, bias, _ in biases_beside(model, set(weights.values()), training.trained(model))}
        beside = {name: parameter for name, parameter in model.named_parameters() if parameter in biases}
        super().__init__(weights | beside, strength)
        self.vectors = {view.name: _first_vector(view) for views in self._views.values() for view in views}

    def penalty_of(self, name: str, weight: Tensor) -> Tensor:
        """Return the penalty of one weight or bias, a scalar."""
        if name not in self._views:
            return bias_penalty(weight)
        views = self._views[name]
        penalties = [spectral_penalty(view.read(), self.vectors[view.name], view.groups) for view in views]
        return sum(penalties[1:], penalties[0])

    def gradient_of(self, name: str, weight: Tensor) -> Tensor:
        """Do one power iteration; return the gradient of the penalty, of the shape of `weight`."""
        if name not in self._views:
            return bias_gradient(weight)
        gradient = torch.zeros_like(weight)
        for view in self._views[name]:
            matrix = view.read()
            self.vectors[view.name] = vector = power_iteration(matrix, self.vectors[view.name], view.groups)
            view.of(gradient).write(spectral_gradient(matrix, vector, view.groups))
        return gradient

    def state_dict(self) -> dict[str, Any]:
        """Return the estimates, on the CPU."""
        return {"vectors": {name: vector.cpu().clone() for name, vector in self.vectors.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the estimates of a `state_dict`."""
        for name, vector in state.get("vectors", {}).items():
            if name in self.vectors:
                self.vectors[name] = vector.to(self.vectors[name].device, copy=True)


def _first_vector(view: WeightView) -> Tensor:
    """Return v after some iterations from a fixed draw, shape `(groups, in / groups · kernel positions)`."""
    matrix = view.read()
    shape, seeded = (view.groups, matrix[0].numel()), torch.Generator("cpu").manual_seed(0)
    draw = torch.randn(shape, generator=seeded, device="cpu")
    wide = torch.promote_types(matrix.dtype, torch.float32)
    vector = to_device(nn.functional.normalize(draw).to(wide), matrix.device)
    for _ in range(_FIRST_ITERATIONS):
        vector = power_iteration(matrix, vector, view.groups)
    return vector
