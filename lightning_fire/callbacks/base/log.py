"""Immediate logging: on Lightning's own axis, and to the disk."""

from collections.abc import Mapping

from lightning.pytorch import Trainer

from lightning_fire._lightning import batches_that_stepped


def log_now(trainer: Trainer, values: Mapping[str, float], at_epoch_end: bool = False) -> None:
    """Write scalars to all loggers immediately, on Lightning's own axis, and to `trainer.callback_metrics`.

    `LightningModule.log` in `on_train_epoch_start` would write them at the end of the epoch. They are on the disk
    before the next checkpoint: a run that is resumed from that one does not log them again. With `at_epoch_end` they
    are at the last step, where Lightning writes at the end of an epoch.
    """
    step = batches_that_stepped(trainer) - at_epoch_end
    for logger in trainer.loggers:
        logger.log_metrics(dict(values), step=step)
        logger.save()
    distributed = trainer.world_size > 1
    headlines = {key: value for key, value in values.items() if key.count("/") == 1}  # not `group/metric/layer`
    for key, value in headlines.items():
        trainer.lightning_module.log(
            key, value, logger=False, on_step=False, on_epoch=True, batch_size=1, sync_dist=distributed
        )
