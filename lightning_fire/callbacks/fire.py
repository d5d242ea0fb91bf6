"""FIRE: Frobenius-isometry reinitialisation (ICLR 2026)."""

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn
from torch import Tensor, distributed

from lightning_fire.callbacks.base.change import new_weights, write
from lightning_fire.callbacks.base.event import EventCallback
from lightning_fire.callbacks.base.optimizer_state import OptimizerPolicy, check_policy
from lightning_fire.callbacks.probing.batches import Loss
from lightning_fire.functional import fire
from lightning_fire.functional.orthogonal import Coefficients, Scale
from lightning_fire.when import Schedule
from lightning_fire.where import Weights, WeightView


class FIRECallback(EventCallback):
    """Replaces selected weights by the nearest orthogonal ones when new data arrives.

    At each event it logs, for the selected weights: the normalized deviation from isometry before and after
    (`fire/dfi_normalized_before`, `fire/dfi_normalized_after`; the paper's, which depends on the scale, as
    `fire.raw/dfi_before`, `…_after`), the squared Frobenius error (`fire/sfe`, `fire/sfe_normalized`), the time taken
    (`fire/seconds`), a marker (`fire/event`), and the same per layer under `fire.layers/`. For the network on the data
    to come: the largest eigenvalue of the Hessian of its loss before and after, `fire/lambda_max_before` and
    `fire/lambda_max_after`.

    Args:
        when: Schedule, or several of which any may be due. Default: `AtNewData()`, the start of every chunk but the
            first.
        where: The weights to act on. Default: `Weights()`: of a causal language model every Linear weight, of other
            models with attention the query and key projections, otherwise every Linear and convolution weight.
        steps: Newton–Schulz steps (paper: 10 in vision, 5 for GPT), or `exact` for the limit.
        coefficients: Of the Newton–Schulz polynomial: `cubic` (paper, Algorithm 1), `quintic` or `muon`.
        scale: `paper`: √(out / in) / kernel positions; `none`: singular values near 1; `procrustes`: the scale that
            moves each matrix least, for networks without normalisation layers.
        optimizer: Whose optimizer state to drop: `keep` drops nothing, `touched` that of the replaced weights, `all`
            everything, as the paper does in vision and language (where `OptimizerReset` does it for every method).
        log_layers: Also log each layer by itself, and in TensorBoard histograms of its singular values before and
            after, `fire.singular_values_before/…` and `…_after/…`.
        curvature: Log λ_max of the loss on 16 samples: at most 16 products with the Hessian, each of 2 to 3 gradients.
        loss: From the module and a batch to the loss of which λ_max is, a scalar. Default: what `training_step`
            returns, of automatic optimization; what it logs is dropped.
        name: Prefix of the logged keys in the place of `fire`, to tell two of these callbacks apart.

    Raises:
        ValueError: If an argument is out of range, or, before training, if `where` matches no weight.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> trainer = Trainer(callbacks=[FIRECallback()], logger=False, enable_checkpointing=False)
    """

    acts_on_shards = True
    name = "fire"

    def __init__(
        self,
        when: Schedule | Sequence[Schedule] | None = None,
        where: Weights | None = None,
        steps: int | Literal["exact"] = 10,
        coefficients: Coefficients = "cubic",
        scale: Scale = "paper",
        optimizer: OptimizerPolicy = "touched",
        log_layers: bool = True,
        curvature: bool = True,
        loss: Loss | None = None,
        name: str | None = None,
    ):
        super().__init__(when, name, curvature, loss)
        some = min(steps, 1) if isinstance(steps, int) else steps
        fire(torch.eye(1), some, coefficients, scale)  # refuses what is out of range
        check_policy(optimizer)
        if isinstance(where, str):
            raise TypeError(f"`where` must be a selection such as Weights(preset={where!r}), got {where!r}")
        self.where = where if where is not None else Weights()
        self.steps, self.coefficients, self.scale = steps, coefficients, scale
        self.optimizer, self.log_layers = optimizer, log_layers

    def describe(self) -> str:
        return f"{self.when!r}, {self.where!r}"

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_fit_start(trainer, pl_module)
        self.where.select(pl_module)  # raises before training where nothing is matched

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        views = self.where.select(pl_module)
        matrices = f"{len(views)} weight matrices ({views[0].name} … {views[-1].name})"
        when = f"{self.when!r}{f'; {self._explanation}' if self._explanation else ''}"
        says = f"has selected {matrices}" if self._idle else f"will act on {matrices}, {when}"
        rank_zero_info(f"FIRECallback {says}. print({self.where}.select(model)) shows the selection.")

    def new_weight(self, view: WeightView, weight: Tensor) -> Tensor:
        """Return the weight that takes the place of `weight`.

        Args:
            view: The selected weight.
            weight: Its value, shape `(out, in / groups, *kernel)`.
        """
        return fire(weight, self.steps, self.coefficients, self.scale, view.groups)

    def views_to_show(self, pl_module: LightningModule) -> Sequence[WeightView]:
        return self.where.select(pl_module) if self.log_layers else ()

    def act(self, trainer: Trainer, pl_module: LightningModule) -> Mapping[str, float]:
        views = self.where.select(pl_module)
        ranks = trainer.world_size if distributed.is_available() and distributed.is_initialized() else 1
        new, values, zeros = new_weights(views, self.new_weight, self.name, trainer.global_rank, ranks)
        if zeros:
            rank_zero_warn(f"FIRE leaves all-zero matrices at zero, they have no nearest isometry: {', '.join(zeros)}")
        self.carry_out(pl_module, lambda: write(new, self.optimizer, trainer.optimizers))
        return values if self.log_layers else {key: v for key, v in values.items() if ".layers/" not in key}
