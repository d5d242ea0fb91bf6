"""A metric over each task of a stream."""

from typing import Any

import lightning.pytorch as pl

from lightning_fire._lightning import attached_trainer, undeclared
from lightning_fire.contracts import HasOnline, implements


class TaskMetric(pl.LightningModule):
    """Base class of modules that log a metric over each task of a stream, from outputs before the update.

    Subclasses call `update_task` in `training_step`. Checkpoints contain the state of the metric.
    """

    task_metric: str  # name of the attribute with the metric, which must have a state `samples`
    task_key: str  # under which it is logged

    def update_task(self, batch_idx: int, *batch: Any) -> None:
        """Update the metric of the current task, if any, with a batch; at the start of a task, reset it first."""
        if (data := self._stream()) is None:
            return
        metric = self._metric
        if batch_idx == 0 and self.current_epoch == data.first_epoch(data.chunk):
            if self.current_epoch and metric.samples:
                # of the previous task, if it ended with the resumed checkpoint: Lightning skips its end
                value = float(type(metric).compute(metric))  # of this rank: no other has any samples
                for logger in self.loggers:
                    logger.log_metrics({self.task_key: value}, step=self.trainer.global_step - 1)
            metric.reset()
        metric.update(*batch)

    def on_train_epoch_end(self) -> None:
        """Log the metric, and reset it, at the end of the last epoch of a task."""
        if (data := self._stream()) is None:
            return
        epoch = self.current_epoch
        if epoch + 1 == data.total_epochs or data.chunk_at(epoch + 1) != data.chunk_at(epoch):
            self.log(self.task_key, self._metric.compute())
            self._metric.reset()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Save the state of the current task of this rank."""
        checkpoint[self.task_metric] = {name: value.item() for name, value in self._metric.metric_state.items()}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the metric of an interrupted task, on the one rank whose state was saved."""
        if self.global_rank == 0:
            for name, value in checkpoint.get(self.task_metric, {}).items():
                getattr(self._metric, name).fill_(value)

    @property
    def _metric(self) -> Any:
        return getattr(self, self.task_metric)

    def _stream(self) -> Any:
        """Return the data, if the module is being trained on a stream."""
        trainer = undeclared(attached_trainer(self))
        data = None if trainer is None else trainer.datamodule
        return data if implements(data, HasOnline) and data.online else None
