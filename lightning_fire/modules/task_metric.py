"""A metric over each task of a stream, of the outputs on each batch before the update with it.

For modules that log it: update the metric in `training_step`, log it in `on_train_epoch_end`, keep its state in
checkpoints. A metric must have a state `samples`.
"""

from collections.abc import Mapping
from typing import Any

import lightning.pytorch as pl
from torchmetrics import Metric

from lightning_fire._lightning import attached_trainer
from lightning_fire.contracts import HasOnline, offers


def is_online(module: pl.LightningModule) -> bool:
    """Return whether a module is being trained on a stream."""
    trainer = attached_trainer(module)
    datamodule = None if trainer is None else trainer.datamodule
    return offers(datamodule, HasOnline) and datamodule.online


def update_task_metric(module: pl.LightningModule, metric: Metric, key: str, batch_idx: int, *batch: Any) -> None:
    """Update the metric of the current task, if there is one; where a task begins, reset the metric first.

    Args:
        module: The module in training.
        metric: Metric of the task.
        key: Key under which it is logged.
        batch_idx: Index of the batch in its epoch.
        batch: Arguments of the update.
    """
    if not is_online(module):
        return
    data = module.trainer.datamodule
    if batch_idx == 0 and module.current_epoch == data.first_epoch(data.chunk):
        if module.current_epoch and metric.samples:
            # of the task before, if it ended with the resumed checkpoint: Lightning leaves out its end
            value = float(type(metric).compute(metric))  # of this rank: no other has any samples
            for logger in module.loggers:
                logger.log_metrics({key: value}, step=module.trainer.global_step - 1)
        metric.reset()
    metric.update(*batch)


def log_task_metric(module: pl.LightningModule, metric: Metric, key: str) -> None:
    """Log the metric of a task, and reset it, at the end of the last epoch of the task."""
    if not is_online(module):
        return
    data, epoch = module.trainer.datamodule, module.current_epoch
    if epoch + 1 == data.total_epochs or data.chunk_at(epoch + 1) != data.chunk_at(epoch):
        module.log(key, metric.compute())
        metric.reset()


def state_of_task_metric(metric: Metric) -> dict[str, float]:
    """Return the state of this rank, for a checkpoint."""
    return {name: value.item() for name, value in metric.metric_state.items()}


def restore_task_metric(module: pl.LightningModule, metric: Metric, state: Mapping[str, float]) -> None:
    """Continue the metric of an interrupted task, on the one rank whose state was kept."""
    if module.global_rank == 0:
        for name, value in state.items():
            getattr(metric, name).fill_(value)
