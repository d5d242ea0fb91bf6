"""Logging at once: on the axis on which Lightning writes, and to the disk."""

from collections.abc import Mapping

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor

from lightning_fire._lightning import batches_that_stepped


def log_now(trainer: Trainer, values: Mapping[str, float], at_epoch_end: bool = False) -> None:
    """Write values to all loggers at once, on the axis on which Lightning writes.

    `LightningModule.log` in `on_train_epoch_start` would be written at the end of the epoch. The values also go to
    `trainer.callback_metrics`, for other callbacks to watch. They reach the disk at once, and not when the loggers are
    next due: a run that is killed after its next checkpoint is gone on with from there, and would never log them again.

    Args:
        values: Scalars by key.
        at_epoch_end: Write at the place of the last step done, where Lightning puts what belongs to the end of an
            epoch, and not at that of the next one.
    """
    step = _axis(trainer) - at_epoch_end
    for logger in trainer.loggers:
        logger.log_metrics(dict(values), step=step)
        logger.save()
    distributed = trainer.world_size > 1
    for key, value in headlines(values).items():
        trainer.lightning_module.log(
            key, value, logger=False, on_step=False, on_epoch=True, batch_size=1, sync_dist=distributed
        )


def log_histograms_now(trainer: Trainer, values: Mapping[str, Tensor]) -> None:
    """Write histograms to the TensorBoard loggers at once, on the axis of `log_now`; others have no such thing.

    Args:
        values: Tensors of any shape by key.
    """
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger) and trainer.is_global_zero:
            for key, tensor in values.items():
                logger.experiment.add_histogram(key, tensor, _axis(trainer))


def _axis(trainer: Trainer) -> int:
    """Return the steps done: not global_step, which counts each optimizer of manual optimization on its own."""
    return batches_that_stepped(trainer)


def headlines(values: Mapping[str, float]) -> dict[str, float]:
    """Leave out what is logged per layer, as `group/measure/layer`.

    Args:
        values: Scalars by key.
    """
    return {key: value for key, value in values.items() if key.count("/") == 1}
