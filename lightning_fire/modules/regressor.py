"""Regression on data that grows or changes."""

from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.optim import Adam, Optimizer

from lightning_fire.modules.mean_loss import MeanLoss
from lightning_fire.modules.optimizer_factory import OptimizerFactory
from lightning_fire.modules.task_metric import TaskMetric


class Regressor(TaskMetric):
    """Trains a network with the mean squared error.

    Logs `train/loss` and `val/loss` each epoch; also `train/online_error` at the end of each task, if the DataModule is
    `online` (streams): the mean squared error on each batch before the update with it, over all epochs of the task.

    Args:
        net: The network, from inputs `(batch, ...)` to outputs of the shape of the targets.
        optimizer: Function from the parameters to the optimizer. Default: Adam with learning rate 1e-3.
    """

    task_metric = "task_error"
    task_key = "train/online_error"

    def __init__(self, net: nn.Module, optimizer: OptimizerFactory | None = None):
        super().__init__()
        self.net = net
        self.optimizer = optimizer or (lambda parameters: Adam(parameters, lr=1e-3))
        self.train_loss = MeanLoss()
        self.task_error = MeanLoss()

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs of inputs `(batch, ...)`."""
        return self.net(inputs)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Return the mean squared error of a batch of inputs and targets, each `(batch, ...)`."""
        inputs, targets = batch
        loss = mse_loss(self(inputs), targets)
        self.train_loss.update(loss, len(targets))
        self.update_task(batch_idx, loss, len(targets))
        return loss

    def on_train_epoch_end(self) -> None:
        super().on_train_epoch_end()
        self.log("train/loss", self.train_loss)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        inputs, targets = batch
        loss = mse_loss(self(inputs), targets)
        self.log("val/loss", loss, batch_size=len(targets), sync_dist=self.trainer.world_size > 1)

    def configure_optimizers(self) -> Optimizer:
        return self.optimizer(self.parameters())
