"""What callbacks log, and immediate logging: at Lightning's own step, and written to disk."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from lightning.pytorch import Trainer
from torch.optim import Optimizer

from lightning_fire._lightning import batches_that_stepped, loss_scaler, undeclared
from lightning_fire._private import is_a, unscales_gradients
from lightning_fire.contracts import HasEnvironmentSteps, implements
from lightning_fire.distributed import to_device
from lightning_fire.functional.checks import at_least
from lightning_fire.methods.base.report import check_name


@dataclass(frozen=True)
class Log:
    """Options of what a callback logs.

    Args:
        name: Prefix of the logged keys instead of the method's own, to distinguish two callbacks of one class.
        weights: Log deviation from isometry and squared Frobenius error of the weights at an event. This costs a copy
            of the weights and a few matrix products: disable it if events occur every few steps.
        layers: Also log each layer separately, and in TensorBoard histograms of its singular values before and after an
            event: `{name}.singular_values_before/…` and `…_after/…`.
        curvature: Log `{name}/lambda_max`, the largest eigenvalue of the Hessian of the loss on the first 8 samples of
            the current batch, before and after an event: 4 or 5 products with the Hessian each time, each of 2 to 3
            gradients. The loss is that of the module's `loss_on(batch)`, otherwise of `training_step`. Default: True
            for `FIRECallback`, `ShrinkAndPerturb`, `FullReset` and `DASH` if `weights` is True.
        validation_batches: Run the Trainer's validation on this many batches before and after an event that replaces
            weights, with all hooks of the module and of callbacks, and log its metrics: `val/accuracy` as
            `{name}/val_accuracy_before` and `…_after`. Not run without `weights`. Default: 0, never.

    Raises:
        ValueError: If `name` has a slash or `validation_batches` is negative.
    """

    name: str | None = None
    weights: bool = True
    layers: bool = True
    curvature: bool | None = None
    validation_batches: int = 0

    def __post_init__(self) -> None:
        check_name(self.name)
        at_least(0, validation_batches=self.validation_batches)


def log_of(log: Log | None) -> Log:
    """Return the given options, `Log()` for None; raise a TypeError for anything else."""
    if log is not None and not isinstance(log, Log):
        raise TypeError(f"`log` must be a Log, such as Log(name='fire_2'), got {log!r}")
    return log or Log()


def step_of_logs(trainer: Trainer, at_epoch_end: bool = False) -> int:
    """Return the current step for logs: in environment steps if the data counts them, otherwise in batches."""
    data = undeclared(trainer).datamodule
    if implements(data, HasEnvironmentSteps):
        return data.environment_steps
    return batches_that_stepped(trainer) - at_epoch_end


def log_now(trainer: Trainer, values: Mapping[str, float], at_epoch_end: bool = False) -> None:
    """Write scalars to all loggers immediately, at `step_of_logs`, and to `trainer.callback_metrics`.

    `LightningModule.log` in `on_train_epoch_start` would write them at the end of the epoch. Here they are on disk
    before the next checkpoint, so that a run resumed from it does not log them again. With `at_epoch_end` they are
    logged at the last step, as Lightning does at the end of an epoch.
    """
    step = step_of_logs(trainer, at_epoch_end)
    for logger in trainer.loggers:
        logger.log_metrics(dict(values), step=step)
        logger.save()
    distributed = trainer.world_size > 1
    headlines = {key: value for key, value in values.items() if key.count("/") == 1}  # not `group/metric/layer`
    numbers = torch.tensor(list(headlines.values()), dtype=torch.get_default_dtype(), device="cpu")
    # Lightning would transfer each number separately and wait for the device.
    for key, value in zip(headlines, to_device(numbers, trainer.lightning_module.device), strict=True):
        trainer.lightning_module.log(
            key, value, logger=False, on_step=False, on_epoch=True, batch_size=1, sync_dist=distributed
        )


def mark_event(trainer: Trainer, name: str, values: Mapping[str, float], sentence: str) -> None:
    """Write an event to TensorBoard: in group `events`, each metric before and after it, as one sawtooth curve.

    The value before is written at the previous step, as TensorBoard shows one value per step. The sentence appears
    under "Text".
    """
    step = step_of_logs(trainer)
    for logger in trainer.loggers:
        if not is_a(logger, "TensorBoardLogger"):
            continue
        board = undeclared(logger).experiment
        for key, before in values.items():
            metric = key.removeprefix(f"{name}/").removesuffix("_before")
            if key == f"{name}/{metric}_before" and f"{name}/{metric}_after" in values:
                board.add_scalar(f"events/{name} {metric}", before, step - 1)
                board.add_scalar(f"events/{name} {metric}", values[f"{name}/{metric}_after"], step)
        board.add_text(f"events/{name}", sentence, step)


def loss_scale(trainer: Trainer, optimizer: Optimizer) -> float:
    """Return the loss scale still contained in the gradients: fused optimizers remove it themselves."""
    scaler = loss_scaler(trainer)
    return scaler.get_scale() if scaler is not None and unscales_gradients(optimizer) else 1.0
