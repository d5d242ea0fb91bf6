"""Quantities of the theorems, from their definitions, and their bounds term by term, in float64."""

import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def features(weights: Sequence[Tensor], inputs: Tensor, activations: Sequence[Callable[[Tensor], Tensor]]) -> Tensor:
    """Outputs of the last layer, `(samples, out)`; one activation for each layer."""
    for weight, activation in zip(weights, activations, strict=True):
        inputs = activation(inputs @ weight.T)
    return inputs


def normalized_covariance(values: Tensor) -> Tensor:
    return values @ values.T / values.square().sum()


def whitened_inputs(samples: int, size: int, seed: int) -> Tensor:
    """Z, `(samples, size)`, with ZᵀZ = samples · I."""
    noise = torch.randn(samples, size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return samples**0.5 * torch.linalg.qr(noise)[0]


def hessian_norm(weights: Sequence[Tensor], loss: Callable[[list[Tensor]], Tensor]) -> float:
    """Largest absolute eigenvalue of the Hessian of `loss`, a function of all weights."""
    sizes = [weight.numel() for weight in weights]

    def of_flat(flat: Tensor) -> Tensor:
        return loss([part.view_as(weight) for part, weight in zip(flat.split(sizes), weights, strict=True)])

    hessian = torch.autograd.functional.hessian(of_flat, torch.cat([weight.flatten() for weight in weights]))
    return float(torch.linalg.eigvalsh((hessian + hessian.T) / 2).abs().max())


def srank(values: Tensor, delta: float) -> int:
    """Smallest k whose largest singular values sum to 1 − δ of all."""
    sigma = torch.linalg.svdvals(values.double()).tolist()
    return next(k for k in range(1, len(sigma) + 1) if sum(sigma[:k]) >= (1 - delta - 1e-12) * sum(sigma))


def activity_scores(weight: Tensor, covariance: Tensor | None = None) -> Tensor:
    """s_i for z ~ N(0, covariance) and no bias: E|σ(⟨z, w⟩)| is proportional to the deviation of ⟨z, w⟩."""
    covariance = torch.eye(weight.shape[1], dtype=weight.dtype) if covariance is None else covariance
    deviations = (weight @ covariance @ weight.T).diagonal().sqrt()
    return deviations / deviations.mean()


def feature_covariance_bound(before, after, input_norm, feature_norm, lipschitz) -> float:
    """The formula as the paper prints it, squared, then its root."""
    largest = [
        max(float(torch.linalg.svdvals(w)[0]), float(torch.linalg.svdvals(v)[0]))
        for w, v in zip(before, after, strict=True)
    ]
    change = sum(float((w - v).square().sum()) for w, v in zip(before, after, strict=True))
    squared = 16 * input_norm**2 / feature_norm**2 * math.prod(lipschitz) ** 2
    return (squared * math.prod(largest) ** 2 * sum(1 / norm**2 for norm in largest) * change) ** 0.5


def hessian_bound(dfi: list[float], curvature: float, gradient: float, moments: list[float]) -> float:
    """The paper's formula, term by term; `moments`: that of the inputs in the terms of each layer, 1 in the paper."""
    growth = [1 + value**0.5 for value in dfi]
    total = 0.0
    for k in range(len(growth)):
        total += curvature * moments[k] * math.prod(nu for j, nu in enumerate(growth) if j != k)
    for k, other in itertools.combinations(range(len(growth)), 2):
        rest = math.prod(nu for j, nu in enumerate(growth) if j not in (k, other))
        total += 2 * gradient * moments[k] ** 0.5 * rest
    return total


def sharper_hessian_bound(dfi: list[float], curvature: float, gradient: float, moments: list[float]) -> float:
    """The same, with γ Σ Π √ν instead of 2γ Σ Π ν."""
    growth = [1 + value**0.5 for value in dfi]
    total = hessian_bound(dfi, curvature, 0.0, moments)
    for k, other in itertools.combinations(range(len(growth)), 2):
        rest = math.prod(nu**0.5 for j, nu in enumerate(growth) if j not in (k, other))
        total += gradient * moments[k] ** 0.5 * rest
    return total
