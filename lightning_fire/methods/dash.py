"""DASH: direction-aware shrinking (Shin et al., NeurIPS 2024)."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from lightning_fire.distributed import mean_over_ranks
from lightning_fire.functional import dash
from lightning_fire.methods.base.change import Change, change_weights, require_finite
from lightning_fire.methods.base.optimizer_state import OptimizerPolicy, Optimizers, check_policy
from lightning_fire.methods.base.report import Report
from lightning_fire.methods.base.selecting import select_weights, trained_by
from lightning_fire.where import Weights, WeightView
from lightning_fire.where.argument import check_model
from lightning_fire.where.trained import why_not_trained

Gradients = Callable[[Sequence[Parameter]], Iterable[Sequence[Tensor]]]


def dash_(
    model: nn.Module,
    losses: Iterable[Tensor],
    alpha: float = 0.3,
    minimum: float = 0.3,
    where: Weights | None = None,
    *,
    optimizers: Optimizers = (),
    optimizer_state: OptimizerPolicy = "touched",
    measure: bool = True,
) -> Report:
    """Shrink in place the weights of a model that are not aligned with the negative gradient on new data.

    The direction g of each weight is the exponential moving average (EMA) of its negative gradients,
    g ← (1 − α)·g + α·(−∇). Then w ← w · clamp(cos(w, g), λ, 1), for each kernel of a convolution, each row of a matrix
    and each bias. Other parameters and all buffers stay.

    Args:
        model: Any module.
        losses: The losses of batches of the new data, scalars with a graph, one after the other, best from a generator:
            `(criterion(model(x), y) for x, y in loader)`. Buffers such as the statistics of BatchNorm are restored.
        alpha: α in (0, 1] (paper: tuned, 0.1 or 0.3).
        minimum: λ in [0, 1], the smallest fraction of a weight that is kept (paper: tuned, 0.05 to 0.3).
        where: The weights to shrink; their biases go with them. Default:
            `Weights(preset="cnn", vectors=True)`, every Linear and convolution weight.
        optimizers: The optimizers that train the model, one or several. What none of them trains stays, with a warning.
        optimizer_state: What to drop: `"keep"` nothing, `"touched"` the state of what is changed, `"all"` everything.
        measure: Whether to fill the report, which costs some matrix products.

    Returns:
        What happened to the weights, see `fire_`, and `batches`, the number of losses.

    Raises:
        TypeError: If an argument is of another kind.
        ValueError: If an argument is out of range, `where` matches no weight, or a weight or a gradient has a NaN or
            Inf. The model is unchanged then.

    Example:
        >>> model, x = nn.Linear(2, 3), torch.ones(4, 2)
        >>> report = dash_(model, (model(x).square().sum() for _ in range(5)))
        >>> report["batches"]
        5.0
    """
    check_model(model)
    if isinstance(losses, Tensor) or not isinstance(losses, Iterable):
        raise TypeError(f"`losses` must be several losses, one of each batch, got {type(losses).__name__}")
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]

    def gradients(parameters: Sequence[Parameter]) -> Iterator[list[Tensor]]:
        for loss in losses:
            found = torch.autograd.grad(loss, parameters, allow_unused=True)
            yield [torch.zeros_like(p) if grad is None else grad for p, grad in zip(parameters, found, strict=True)]

    try:
        change = plan_dash(model, gradients, alpha, minimum, where, optimizers, optimizer_state, measure)
    finally:
        for buffer, before in buffers:
            buffer.copy_(before)
    return change.apply()


def plan_dash(
    model: nn.Module,
    gradients: Gradients,
    alpha: float,
    minimum: float,
    where: Weights | None,
    optimizers: Optimizers,
    optimizer_state: OptimizerPolicy,
    measure: bool,
) -> Change:
    """Compute what `dash_` does, and change nothing yet; `gradients` yields those of parameters on each batch."""
    if not 0 < alpha <= 1:
        raise ValueError(f"`alpha` must be in (0, 1], got {alpha}")
    dash(torch.zeros(1), torch.zeros(1), minimum)  # raises if out of range
    check_policy(optimizer_state, "optimizer_state")
    with trained_by(model, optimizers) as optimizers:
        weights, left_out = select_weights(model, where, Weights(preset="cnn", vectors=True))
        biases = _biases_of(model, weights)
    require_finite({**{view.name: view.read() for view in weights}, **biases})
    parameters = list(dict.fromkeys([*(view.parameter for view in weights), *biases.values()]))
    average = [torch.zeros_like(parameter, dtype=torch.float32) for parameter in parameters]
    batches = 0
    with _requiring_gradients(parameters):
        for batch in gradients(parameters):
            batches += 1
            for mean, gradient in zip(average, batch, strict=True):
                mean.lerp_(-gradient.float(), alpha)
    reduced = [mean_over_ranks(mean) for mean in average]
    if not torch.stack([mean.isfinite().all() for mean in reduced]).all():
        raise ValueError("NaN or Inf in the gradients on the new data, which DASH uses; no weight has been changed.")
    directions = dict(zip(parameters, reduced, strict=True))

    def new_weight(view: WeightView, weight: Tensor) -> Tensor:
        return dash(weight, view.of(directions[view.parameter]).read(), minimum)

    others: dict[Tensor, Tensor] = {bias: dash(bias.detach(), directions[bias], minimum) for bias in biases.values()}
    change = change_weights(weights, new_weight, optimizers, optimizer_state, False, measure, others)
    report = replace(change.report, values={**change.report.values, "batches": float(batches)})
    return replace(change, report=report, left_out=left_out)


@contextmanager
def _requiring_gradients(parameters: Sequence[Parameter]) -> Iterator[None]:
    """Let parameters that are frozen between batches have gradients."""
    frozen = [parameter for parameter in parameters if not parameter.requires_grad]
    try:
        for parameter in frozen:
            parameter.requires_grad_(True)
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)


def _biases_of(model: nn.Module, weights: Sequence[WeightView]) -> dict[str, Parameter]:
    """Return by name the trainable biases of the layers that some of the weights belong to."""
    selected = {view.parameter for view in weights}
    return {
        f"{name}.bias": layer.bias
        for name, layer in model.named_modules()
        if getattr(layer, "weight", None) in selected
        and isinstance(getattr(layer, "bias", None), Parameter)
        and not why_not_trained(layer.bias)
    }
