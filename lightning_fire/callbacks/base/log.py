"""Immediate logging: at Lightning's own step, and written to disk."""

from collections.abc import Mapping

import torch
from lightning.pytorch import Trainer
from torch.optim import Optimizer

from lightning_fire._lightning import batches_that_stepped, loss_scaler, undeclared
from lightning_fire._private import is_a, unscales_gradients
from lightning_fire.contracts import HasEnvironmentSteps, offers
from lightning_fire.methods.base.transfers import sent


def step_of_logs(trainer: Trainer, at_epoch_end: bool = False) -> int:
    """Return the current step for logs: in environment steps if the data counts them, otherwise in batches."""
    data = undeclared(trainer).datamodule
    return data.environment_steps if offers(data, HasEnvironmentSteps) else batches_that_stepped(trainer) - at_epoch_end


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
    for key, value in zip(headlines, sent(numbers, trainer.lightning_module.device), strict=True):
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
