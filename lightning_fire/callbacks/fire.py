"""FIRE as a callback: Frobenius-isometry reinitialization (ICLR 2026)."""

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from lightning.pytorch import LightningModule, Trainer

from lightning_fire.callbacks.base.event import EventCallback
from lightning_fire.callbacks.base.event_log import Log
from lightning_fire.functional import fire
from lightning_fire.functional.orthogonal import Coefficients, Scale
from lightning_fire.messages import inform
from lightning_fire.methods.base.change import Change
from lightning_fire.methods.base.optimizer_state import OptimizerPolicy, check_policy
from lightning_fire.methods.fire import plan_fire, scales_of
from lightning_fire.when import Schedule
from lightning_fire.where import Weights
from lightning_fire.where.argument import checked
from lightning_fire.where.selection import some


class FIRECallback(EventCallback):
    """Replaces selected weights by the nearest orthogonal ones when new data arrives.

    At each event it logs, for the selected weights: the normalized deviation from isometry before and after
    (`fire/dfi_normalized_before`, `fire/dfi_normalized_after`; the paper's, which depends on the scale, as
    `fire.raw/dfi_before`, `…_after`), the squared Frobenius error (`fire/sfe`, `fire/sfe_normalized`), its duration
    (`fire/seconds`), a marker (`fire/event`), and the same per layer under `fire.layers/`. For the network on
    upcoming data: the largest eigenvalue of the Hessian of its loss before and after, `fire/lambda_max_before` and
    `fire/lambda_max_after`.

    Args:
        when: Schedule, or several of which any may be due. Default: `AtNewData()`, the start of every chunk but the
            first.
        where: The weights to act on. Default: `Weights()`: of a causal language model every Linear weight, of other
            transformers the query and key projections, otherwise every Linear and convolution weight.
        steps: Newton–Schulz steps (paper: 10 in vision, 5 for GPT), or `exact` for the limit.
        coefficients: Of the Newton–Schulz polynomial: `cubic` (paper, Algorithm 1), `quintic` or `muon`.
        scale: `paper`: √(out / in) / kernel positions; `none`: singular values near 1; `procrustes`: the scale with the
            smallest Frobenius error for each matrix; `auto`: `paper` for weights followed by a normalization layer,
            otherwise `procrustes`. For an MLP in classification, or a language model after a short first training, try
            `procrustes` (docs/which_scale.md, docs/language_scale.md).
        optimizer: Whose optimizer state to drop: `keep` drops nothing, `touched` that of the replaced weights, `all`
            everything, as the paper does in vision and language (where `OptimizerReset` does it for every method).
        log: What to log. Default: `Log()`.

    Raises:
        ValueError: If an argument is out of range, or, before training, if `where` matches no weight.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> trainer = Trainer(callbacks=[FIRECallback()], logger=False, enable_checkpointing=False)
    """

    acts_on_shards = logs_curvature = True
    name = "fire"

    def __init__(
        self,
        when: Schedule | Sequence[Schedule] | None = None,
        where: Weights | None = None,
        steps: int | Literal["exact"] = 10,
        coefficients: Coefficients = "cubic",
        scale: Scale | Literal["auto"] = "paper",
        optimizer: OptimizerPolicy = "touched",
        log: Log | None = None,
    ):
        super().__init__(when, log)
        few = min(steps, 1) if isinstance(steps, int) else steps
        fire(torch.eye(1), few, coefficients, "paper" if scale == "auto" else scale)  # raises if out of range
        check_policy(optimizer)
        self.where = checked(where, Weights())
        self.steps, self.coefficients, self.scale, self.optimizer = steps, coefficients, scale, optimizer

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        with self.selecting(trainer, pl_module):
            weights = self.where.select(pl_module)
        number = getattr(weights, "summary", f"{len(weights)} weight matrices")
        matrices = f"{number} ({' … '.join(dict.fromkeys([weights[0].name, weights[-1].name]))})"
        when = f"{self.when!r}{f'; {self._explanation}' if self._explanation else ''}"
        says = f"has selected {matrices}" if self._idle else f"will act on {matrices}, {when}"
        if self.scale == "auto":
            says += f"; {_in_words(scales_of(pl_module, weights))}"
        inform(f"FIRECallback {says}. print({self.where}.select(model)) shows the selection.")

    def plan(self, trainer: Trainer, pl_module: LightningModule) -> Change:
        return plan_fire(
            pl_module,
            self.where,
            self.steps,
            self.coefficients,
            self.scale,
            optimizers=trainer.optimizers,
            optimizer_state=self.optimizer,
            share_work=True,
            measure=self.logs.weights,
        )


def _in_words(scales: Mapping[str, Scale]) -> str:
    """Describe which weights have which scale, and the reason."""
    reasons = {"paper": "normalized later", "procrustes": "not normalized later"}
    found = {scale: [name for name, own in scales.items() if own == scale] for scale in reasons}
    parts = [
        f"{scale} for the {len(names)} that are {reasons[scale]} ({some(names, most=3)})"
        for scale, names in found.items()
        if names
    ]
    return f"scale {' and '.join(parts)}"
