"""Rank ascent: steps that increase the rank of hidden features, the ER of L2-ER (Prakash et al., ICML 2026)."""

import math
from collections.abc import Collection, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from lightning_fire.distributed import mean_over_ranks, to_list, world_size
from lightning_fire.functional import entropy_rank_of
from lightning_fire.functional.checks import at_least
from lightning_fire.functional.curvature import NO_GRADIENT
from lightning_fire.functional.ranks import entropy_rank_gradient_of_finite, singular_values_of_finite
from lightning_fire.methods.base.passes import ignored_passes
from lightning_fire.methods.base.unit_reset import Forward, run_watched, watch_output
from lightning_fire.where import HiddenUnits, UnitLayer
from lightning_fire.where.argument import check_model, checked
from lightning_fire.where.trained import why_not_trained


class RankAscent:
    """Gradient ascent on the mean entropy rank of the hidden layers' features: θ ← θ + lr·∇ rank.

    The features of a layer are the outputs of its units, after norm and nonlinearity, on some batches, as a matrix
    `(samples and positions, units)`. These are plain gradient steps, in addition to those of the optimizer.

    Args:
        model: Any module.
        forward: Runs the model once, on any batch, to find its units.
        lr: Learning rate of these steps, at least 0.
        where: The units whose features count. Default: `HiddenUnits()`, all that can be resolved.
        trained: The parameters that optimizers train. Default: those with `requires_grad`.
        ranks: Number of processes that train together, over which gradients are averaged. Default: all of
            `torch.distributed`, 1 without it.

    Raises:
        ValueError: If `lr` is below 0, or `where` finds no units.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
        >>> x = torch.randn(16, 2)
        >>> method = RankAscent(model, lambda: model(x), lr=1e-3)
        >>> before = method.step(lambda: model(x))
        >>> method.step(lambda: model(x)) > before
        True
    """

    def __init__(
        self,
        model: nn.Module,
        forward: Forward,
        lr: float,
        where: HiddenUnits | None = None,
        trained: Collection[Tensor] | None = None,
        ranks: int | None = None,
    ):
        at_least(0, whole=False, lr=lr)
        check_model(model)
        self.model, self.lr, self.ranks = model, lr, world_size() if ranks is None else ranks
        with ignored_passes(model):
            self.layers: Sequence[UnitLayer] = checked(where, HiddenUnits()).select(model, forward, trained)
        self._trained = trained

    def held(self) -> list[Tensor]:
        """Return the weights of the layers whose features count, and of the next ones."""
        return [parameter for layer in self.layers for parameter in layer.parameters()]

    def step(self, forward: Forward) -> float:
        """Do one step. Call it every few batches, on all ranks.

        Args:
            forward: Runs the model with gradients on the batches whose features are used.

        Returns:
            The mean rank of this process's features before the step; NaN, without a step, if it is not finite.
        """
        features = self._features(forward)
        parameters = [p for p in self.model.parameters() if not why_not_trained(p, self._trained)]
        flags = [each.isfinite().all().to(features[0].device) for each in features]
        finite = torch.stack(flags).all()
        there = [torch.where(finite.to(each.device), each.detach(), 0.0) for each in features]
        ranks = [entropy_rank_of(singular_values_of_finite(each)) for each in there]
        directions = [(entropy_rank_gradient_of_finite(each) / len(there)).to(each.dtype) for each in there]
        gradients = torch.autograd.grad(features, parameters, directions, allow_unused=True)
        if all(gradient is None for gradient in gradients):
            raise ValueError(NO_GRADIENT)
        steps = [
            mean_over_ranks(
                torch.zeros_like(parameter)
                if gradient is None
                else torch.where(finite.to(gradient.device), gradient, 0.0),
                self.ranks,
            )
            for parameter, gradient in zip(parameters, gradients, strict=True)
        ]
        found, *numbers = to_list([finite, *ranks, *(step.isfinite().all() for step in steps)])
        if not all(numbers[len(ranks) :]):  # on any rank
            return math.nan
        with torch.no_grad():
            for parameter, step in zip(parameters, steps, strict=True):
                parameter.add_(step, alpha=self.lr)
        return sum(numbers[: len(ranks)]) / len(ranks) if found else math.nan

    def _features(self, forward: Forward) -> list[Tensor]:
        """Return the features of each layer, shape `(samples and positions, units)`, with their graph."""
        seen: list[list[Tensor]] = [[] for _ in self.layers]

        def keep(layer: UnitLayer, rows: list[Tensor], activation: Tensor) -> None:
            if layer.counts_now():
                rows.append(layer.activity(activation).clone())  # the network may change it in place

        pairs = zip(self.layers, seen, strict=True)
        handles = [watch_output(layer, "activation", partial(keep, layer, rows)) for layer, rows in pairs]
        with ignored_passes(self.model):
            run_watched(forward, handles)
        if missing := [layer.name for layer, rows in zip(self.layers, seen, strict=True) if not rows]:
            raise ValueError(f"`forward` has not run {', '.join(missing)}")
        return [torch.cat(rows) for rows in seen]
