"""Metrics of one gradient step on a loss: optimization readiness and critical sharpness."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from lightning_fire.functional import CriticalSharpness, critical_sharpness, optimization_readiness_of

Mean = Callable[[Tensor], Tensor]  # mean over ranks, called by all of them


def alone(tensor: Tensor) -> Tensor:
    """Mean over a single rank: the tensor itself."""
    return tensor


def readiness(gradients: Iterable[Sequence[Tensor]], mean: Mean = alone, ranks: int = 1) -> float:
    """Return the optimization readiness.

    Args:
        gradients: For each batch the gradient with respect to each parameter; at least 2 over all ranks, equally many
            on each.
        mean: Function that returns the mean of a tensor over ranks.
        ranks: Number of ranks.
    """
    total: list[Tensor] = []
    squares: list[Tensor] = []
    for gradient in gradients:
        wide = [part.detach().to(torch.promote_types(part.dtype, torch.float32)) for part in gradient]
        total = [one + other for one, other in zip(total, wide, strict=True)] if total else wide
        squares.append(_dot(wide, wide))
    count = len(squares)
    mean_gradient = mean(torch.cat([part.flatten() for part in total]) / count)
    return float(optimization_readiness_of(mean_gradient, mean(sum(squares[1:], squares[0]) / count), count * ranks))


@torch.no_grad()
def sharpness_along(
    gradient: Sequence[Tensor], parameters: Sequence[Tensor], loss: Callable[[], Tensor | float], mean: Mean = alone
) -> CriticalSharpness:
    """Return the critical sharpness along a negative gradient, by evaluating the loss at shifted parameters.

    The parameters are changed in place and restored exactly. If the loss raises at some shift, it counts as increased.

    Args:
        gradient: Gradient of the loss with respect to each parameter.
        parameters: The parameters.
        loss: Deterministic function that returns the loss at their current values.
        mean: Function that returns the mean of a tensor over ranks.

    Raises:
        ValueError: If the gradient is 0 or not finite, or the loss is not finite.
    """
    saved = [parameter.detach().clone() for parameter in parameters]

    def put(step: float) -> None:
        for parameter, value, direction in zip(parameters, saved, gradient, strict=True):
            parameter.detach().copy_(value - step * direction if step else value)

    def at(step: float) -> float:
        put(step)
        try:
            value = loss()
        except Exception:  # as of a distribution with parameters that are not finite
            value = torch.inf
        return float(mean(torch.as_tensor(value, dtype=torch.get_default_dtype(), device=saved[0].device)))

    try:
        return critical_sharpness(at, -float(_dot(gradient, gradient)))
    finally:
        put(0.0)


def _dot(one: Sequence[Tensor], other: Sequence[Tensor]) -> Tensor:
    return torch.stack([(a * b).sum() for a, b in zip(one, other, strict=True)]).sum()
