"""DASH: direction-aware shrinking (Shin et al., NeurIPS 2024)."""

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from lightning_fire.distributed import mean_over_ranks, to_list
from lightning_fire.functional import dash
from lightning_fire.functional.checks import precise
from lightning_fire.methods.base.change import Change, change_weights, require_finite
from lightning_fire.methods.base.loop import Loop
from lightning_fire.methods.base.method import EventMethod, as_models, left_out_of
from lightning_fire.methods.base.optimizers import OptimizerPolicy, Optimizers
from lightning_fire.methods.base.report import Report
from lightning_fire.where import Weights, WeightView
from lightning_fire.where.trained import why_not_trained

_NEGLIGIBLE = 1e-4


@dataclass(frozen=True)
class DASH(EventMethod):
    """Shrinks the weights that are not aligned with the negative gradient on new data.

    The direction g of each weight is the exponential moving average (EMA) of its negative gradients on batches of new
    data, g ← (1 − α)·g + α·(−∇). Then w ← w · clamp(cos(w, g), λ, 1), for each kernel of a convolution, each row of a
    matrix and each bias. Nothing else changes: normalization layers keep their statistics.

    Args:
        alpha: α in (0, 1] (paper: tuned, 0.1 or 0.3).
        minimum: λ in [0, 1], the smallest fraction of a weight that is kept (paper: tuned, 0.05 to 0.3).
        num_batches: Number of batches of new data, at most one epoch. Default: the smallest number for which earlier
            batches would have less than 1e-4 of the weight in the average, 26 for α = 0.3 and 88 for α = 0.1.
        where: The weights to shrink; their biases go with them. Default:
            `Weights(preset="cnn", vectors=True)`, every Linear and convolution weight.
        optimizer_state: Whose optimizer state to drop: `keep`, `touched` or `all`.

    Raises:
        TypeError: If `where` is a selection of a wrong kind.
        ValueError: If an argument is out of range.
    """

    name: ClassVar[str] = "dash"
    default_where: ClassVar[Weights] = Weights(preset="cnn", vectors=True)
    measures_curvature: ClassVar[bool] = True
    needs_batches: ClassVar[bool] = True

    alpha: float = 0.3
    minimum: float = 0.3
    num_batches: int | None = None
    where: Weights | None = None
    optimizer_state: OptimizerPolicy = "touched"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.alpha <= 1:
            raise ValueError(f"`alpha` must be in (0, 1], got {self.alpha}")
        if self.num_batches is not None and self.num_batches < 1:
            raise ValueError(f"`num_batches` must be at least 1, got {self.num_batches}")
        dash(torch.zeros(1, device="cpu"), torch.zeros(1, device="cpu"), self.minimum)  # checks it

    @property
    def batches(self) -> int:
        """Number of batches of new data that it uses."""
        enough = 1 if self.alpha == 1 else math.ceil(math.log(_NEGLIGIBLE) / math.log(1 - self.alpha))
        return self.num_batches or enough

    def plan(self, model: nn.Module, training: Loop) -> Change:
        """Compute the shrunk weights and biases."""
        trained = training.trained(model)
        weights = self.selection.select(model, trained)
        biases = _biases_of(model, weights, trained)
        require_finite({**{view.name: view.read() for view in weights}, **biases})
        parameters = list(dict.fromkeys([*(view.parameter for view in weights), *biases.values()]))
        average = [torch.zeros_like(precise(parameter)) for parameter in parameters]
        batches = 0
        for batch in training.gradients(parameters, self.batches):
            batches += 1
            for mean, gradient in zip(average, batch, strict=True):
                mean.lerp_(-precise(gradient), self.alpha)
        reduced = [mean_over_ranks(mean, training.ranks) for mean in average]
        if not all(to_list([mean.isfinite().all() for mean in reduced])):
            raise ValueError(
                "NaN or Inf in the gradients on the new data, which DASH uses; no weight has been changed."
            )
        directions = dict(zip(parameters, reduced, strict=True))

        def new_weights(views: Sequence[WeightView], old: Sequence[Tensor]) -> list[Tensor]:
            gradients = [view.of(directions[view.parameter]).read() for view in views]
            return [dash(weight, own, self.minimum) for weight, own in zip(old, gradients, strict=True)]

        shrunk: dict[Tensor, Tensor] = {
            bias: dash(bias.detach(), directions[bias], self.minimum) for bias in biases.values()
        }
        change = change_weights(weights, new_weights, measure=training.measure, others=shrunk)
        report = change.report or Report()
        values = {**report.values, "batches": float(batches)}
        return replace(change, report=replace(report, values=values, left_out=left_out_of(weights)))


def dash_(
    model: nn.Module | Sequence[nn.Module],
    losses: Iterable[Tensor] | Callable[[], Iterable[Tensor]],
    alpha: float = 0.3,
    minimum: float = 0.3,
    where: Weights | None = None,
    *,
    optimizers: Optimizers = (),
    optimizer_state: OptimizerPolicy = "touched",
    averages: Any = (),
) -> Report:
    """Shrink weights that are not aligned with the negative gradient, in place. Function form of `DASH`.

    Args:
        model: Any module, or a list of them, which change together, see `EventMethod.__call__`.
        losses: Losses of batches of the new data, scalars with a graph, best from a generator: `(criterion(model(x), y)
            for x, y in loader)`. Buffers such as the statistics of BatchNorm are restored.
        optimizers: The optimizers that train the model, one or several. Weights that none of them trains stay, with a
            warning.
        averages: One or several averages of the weights, which restart from the new weights, see `Loop`.

    Returns:
        Report on the weights, see `fire_`, and `batches`, the number of losses.

    Raises:
        TypeError: If an argument has a wrong type.
        ValueError: If an argument is out of range, `where` matches no weight, or a weight or a gradient has a NaN or
            Inf. The model is unchanged then.

    Example:
        >>> model, x = nn.Linear(2, 3), torch.ones(4, 2)
        >>> report = dash_(model, (model(x).square().sum() for _ in range(5)))
        >>> report["batches"]
        5.0
    """
    as_models(model)  # checks it
    if isinstance(losses, Tensor) or not (callable(losses) or isinstance(losses, Iterable)):
        raise TypeError(f"`losses` must be several losses, one of each batch, got {type(losses).__name__}")
    method = DASH(alpha, minimum, None, where, optimizer_state)
    return method(model, Loop(optimizers, losses=losses, averages=averages))


def _biases_of(
    model: nn.Module, weights: Sequence[WeightView], trained: Collection[Tensor] | None
) -> dict[str, Parameter]:
    """Return the trainable biases of the layers of some weights, by name."""
    selected = {view.parameter for view in weights}
    return {
        f"{name}.bias": layer.bias
        for name, layer in model.named_modules()
        if getattr(layer, "weight", None) in selected
        and isinstance(getattr(layer, "bias", None), Parameter)
        and not why_not_trained(layer.bias, trained)
    }
