"""DASH: direction-aware shrinking (Shin et al., NeurIPS 2024)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.nn import Parameter

from lightning_fire.callbacks.base.change import new_weights, require_finite, write
from lightning_fire.callbacks.base.event import EventCallback
from lightning_fire.callbacks.base.optimizer_state import OptimizerPolicy, check_policy
from lightning_fire.callbacks.probing.batches import Loss, gradients_on_new_data
from lightning_fire.functional import dash
from lightning_fire.when import Schedule
from lightning_fire.where import Weights, WeightView

_NEGLIGIBLE = 1e-4


class DASH(EventCallback):
    """Shrinks, when new data arrives, what does not point where the new data wants the weights to go.

    The direction g of each weight is the running average of the negative gradients on batches of the new data,
    g ← (1 − α)·g + α·(−∇). Then w ← w · clamp(cos(w, g), λ, 1), for each kernel of a convolution, each row of a matrix
    and each bias; normalisation layers stay. Nothing else changes: BatchNorm does not learn from these batches, and
    training sees them as if nobody had looked. Logs the same measures as `FIRECallback` as `dash/…`, and
    `dash/batches`.

    Args:
        when: Schedule, or several of which any may be due. Default: `AtNewData()`.
        alpha: α in (0, 1] (paper: tuned, 0.1 or 0.3).
        minimum: λ in [0, 1], the least that a weight keeps (paper: tuned, 0.05 to 0.3).
        num_batches: Batches of new data to look at, at most an epoch of them. Default: until those before would have
            less than 1e-4 of the weight in the average, 26 for α = 0.3 and 88 for α = 0.1.
        where: The weights to shrink; their biases go with them. Default: `Weights(preset="cnn")`, every Linear and
            convolution weight.
        loss: From the module and a batch to the loss, a scalar. Default: the module's `loss_on(batch)` if it
            has one, otherwise what `training_step` returns; what that logs is dropped.
        optimizer: Whose optimizer state to drop: `keep`, `touched` or `all`.
        log_layers: Also log each layer by itself, and in TensorBoard histograms of its singular values before and
            after, `dash.singular_values_before/…` and `…_after/…`.
        curvature: Log λ_max, as `FIRECallback` does.
        name: Prefix of the logged keys in the place of `dash`.

    Raises:
        ValueError: If an argument is out of range; before training, if `where` matches no weight; at an event, if a
            weight or a gradient has a NaN or Inf: nothing has been changed then.
        MisconfigurationException: At an event, if the module optimises manually, without `loss` and `loss_on`.
    """

    name = "dash"

    def __init__(
        self,
        when: Schedule | Sequence[Schedule] | None = None,
        alpha: float = 0.3,
        minimum: float = 0.3,
        num_batches: int | None = None,
        where: Weights | None = None,
        loss: Loss | None = None,
        optimizer: OptimizerPolicy = "touched",
        log_layers: bool = True,
        curvature: bool = True,
        name: str | None = None,
    ):
        super().__init__(when, name, curvature, loss)
        if not 0 < alpha <= 1:
            raise ValueError(f"`alpha` must be in (0, 1], got {alpha}")
        if num_batches is not None and num_batches < 1:
            raise ValueError(f"`num_batches` must be at least 1, got {num_batches}")
        dash(torch.zeros(1), torch.zeros(1), minimum)  # refuses what is out of range
        check_policy(optimizer)
        self.alpha, self.minimum = alpha, minimum
        self.num_batches = num_batches or (1 if alpha == 1 else math.ceil(math.log(_NEGLIGIBLE) / math.log(1 - alpha)))
        self.where = where if where is not None else Weights(preset="cnn")
        self.optimizer, self.log_layers = optimizer, log_layers

    def describe(self) -> str:
        return f"{self.when!r}, {self.where!r}"

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_fit_start(trainer, pl_module)
        self.where.select(pl_module)  # raises before training where nothing is matched

    def views_to_show(self, pl_module: LightningModule) -> Sequence[WeightView]:
        return self.where.select(pl_module) if self.log_layers else ()

    def act(self, trainer: Trainer, pl_module: LightningModule) -> Mapping[str, float]:
        views = self.where.select(pl_module)
        biases = _biases_of(pl_module, views)
        require_finite({**{view.name: view.read() for view in views}, **biases})
        parameters = list(dict.fromkeys([*(view.parameter for view in views), *biases.values()]))
        directions, batches = self._directions(trainer, pl_module, parameters)

        def new_weight(view: WeightView, weight: Tensor) -> Tensor:
            return dash(weight, replace(view, parameter=directions[view.parameter]).read(), self.minimum)

        new, values, _ = new_weights(views, new_weight, self.name)
        new |= {bias: dash(bias.detach(), directions[bias], self.minimum) for bias in biases.values()}
        self.carry_out(pl_module, lambda: write(new, self.optimizer, trainer.optimizers))
        if not self.log_layers:
            values = {key: value for key, value in values.items() if ".layers/" not in key}
        return {**values, f"{self.name}/batches": float(batches)}

    def _directions(
        self, trainer: Trainer, pl_module: LightningModule, parameters: Sequence[Parameter]
    ) -> tuple[dict[Parameter, Tensor], int]:
        """Return the running average of the negative gradients, over all ranks, and the batches that it is of."""
        average = [torch.zeros_like(parameter, dtype=torch.float32) for parameter in parameters]
        batches = 0
        for gradients in gradients_on_new_data(trainer, pl_module, parameters, self.num_batches, self.loss):
            batches += 1
            for mean, gradient in zip(average, gradients, strict=True):
                mean.lerp_(-gradient.float(), self.alpha)
        reduced = [trainer.strategy.reduce(mean, reduce_op="mean") for mean in average]
        if not torch.stack([mean.isfinite().all() for mean in reduced]).all():
            raise ValueError(
                "NaN or Inf in the gradients on the new data, which DASH goes by; no weight has been changed."
            )
        return dict(zip(parameters, reduced, strict=True)), batches


def _biases_of(module: nn.Module, weights: Sequence[WeightView]) -> dict[str, Parameter]:
    """Return by name the trainable biases of the layers that some of the weights belong to."""
    selected = {view.parameter for view in weights}
    return {
        f"{name}.bias": layer.bias
        for name, layer in module.named_modules()
        if getattr(layer, "weight", None) in selected
        and isinstance(getattr(layer, "bias", None), Parameter)
        and layer.bias.requires_grad
    }
