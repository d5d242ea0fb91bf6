"""What a network makes of the data that it is about to be trained on, right before and right after an event."""

import contextlib
import time
from collections.abc import Callable, Mapping

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn

from lightning_fire.callbacks.module_curvature import module_curvature
from lightning_fire.callbacks.probe import Loss, batches_of, leaving_no_trace, why_not_look
from lightning_fire.functional import Eigenvalue


def curvature_around(
    trainer: Trainer,
    pl_module: LightningModule,
    act: Callable[[], Mapping[str, float]],
    prefix: str,
    loss: Loss | None = None,
) -> dict[str, float]:
    """Do something to a module, and measure how sharply its loss on the upcoming data bends before and after.

    Where that cannot be measured, it says so once and does the rest.

    Args:
        trainer: The Trainer, its data loaded.
        pl_module: Its module.
        act: Changes the module, and returns what to log about it.
        prefix: Of the keys.
        loss: The loss of a batch. Default: what `training_step` returns, of automatic optimization.

    Returns:
        What `act` returned; `{prefix}/lambda_max_before` and `…_after`, see `UpcomingBatch.lambda_max`; and
        `{prefix}/lambda_max_seconds`, the time that both took.
    """
    if reason := why_not_look(trainer, pl_module, explained=loss is not None):
        rank_zero_info(f"{prefix}/lambda_max is not logged: {reason}.")
        return dict(act())
    batch, start = UpcomingBatch(trainer, pl_module, loss), time.perf_counter()
    before, seconds = batch.measured(f"{prefix}/lambda_max_before"), time.perf_counter() - start
    values = act()
    if not before:
        return dict(values)
    start = time.perf_counter()
    after = batch.measured(f"{prefix}/lambda_max_after")
    return {**values, **before, **after, f"{prefix}/lambda_max_seconds": seconds + time.perf_counter() - start}


class UpcomingBatch:
    """The first batch of an epoch, for measuring: training will see it as if nobody had looked.

    Args:
        trainer: The Trainer, its data loaded.
        pl_module: Its module.
        loss: From the module and a batch to the loss, a scalar. Default: what `training_step` returns.

    Raises:
        ValueError: If the epoch has no batches.
    """

    def __init__(self, trainer: Trainer, pl_module: LightningModule, loss: Loss | None = None):
        self._trainer, self._module, self._loss = trainer, pl_module, loss
        with leaving_no_trace(pl_module), contextlib.closing(batches_of(trainer)) as batches:
            self._batch = next(batches, None)
        if self._batch is None:
            raise ValueError("the epoch has no batches to look at")

    def lambda_max(self) -> Eigenvalue:
        """Return the largest eigenvalue of the Hessian of the loss, by all trainable parameters.

        Of several ranks: of the mean of their losses, the same on each.

        Raises:
            ValueError: If the Hessian has a NaN or Inf.
            RuntimeError: If some operation of the module cannot be differentiated twice.
        """
        strategy = self._trainer.strategy
        return module_curvature(
            self._module, self._batch, self._loss, reduce=lambda vector: strategy.reduce(vector, reduce_op="mean")
        )

    def measured(self, key: str) -> dict[str, float]:
        """Return λ_max under a key; nothing where it cannot be computed, and say why.

        Args:
            key: What to log it as.
        """
        try:
            return {key: self.lambda_max().value}
        except ValueError as error:
            rank_zero_info(f"{key} is not logged: {error}.")
        except RuntimeError as error:  # some operation has no second derivative, or too little memory
            rank_zero_warn(f"{key} is not logged: {error}. curvature=False does without it.", category=RuntimeWarning)
        return {}
