"""Image classification on data that grows, as the paper trains it."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Adam
from torchmetrics.classification import MulticlassAccuracy

from lightning_fire._lightning import undeclared
from lightning_fire._private import Dropouts
from lightning_fire.contracts import HasSeenClasses, implements
from lightning_fire.metrics import OnlineAccuracy
from lightning_fire.modules.chunk_module import ChunkModule
from lightning_fire.modules.mean_loss import MeanLoss
from lightning_fire.modules.optimizer_factory import OptimizerFactory
from lightning_fire.modules.task_metric import TaskMetric
from lightning_fire.nets.mlp import AID

_NOISY = (Dropouts, nn.RReLU, AID)
ParameterGroups = Callable[[nn.Module], Iterable[dict[str, Any]]]


class Classifier(ChunkModule, TaskMetric):
    """Trains a network with cross-entropy, with a warm-up of the learning rate in each chunk of data.

    Logs each epoch `train/loss`, `train/accuracy`, `val/loss` and `val/accuracy` (fractions in [0, 1]); also:

    - `train/online_accuracy` at the end of each task, if the DataModule is `online` (streams): the accuracy on each
      batch before the update with it, over all epochs of the task. With dropout: in evaluation mode, as the network
      would be used.
    - `val/accuracy_seen`, if the DataModule has `seen_classes` (class-incremental): the accuracy on the test samples of
      the classes seen so far, among the outputs of all classes.
    - `val/accuracy_at_new_data` at the start of every chunk but the first, after the callbacks and before the first
      batch: the accuracy on the classes seen then.

    Args:
        net: The network, from `(batch, channels, height, width)` to logits `(batch, num_classes)`.
        num_classes: Number of classes.
        optimizer: Function from the parameters to the optimizer. Default: Adam with learning rate 1e-3 (paper, table
            "Detailed settings in continual visual learning").
        parameter_groups: Function from the module to what `optimizer` gets, such as `lightning_fire.optim.muon_groups`.
            Default: all parameters, in one group.
        warmup: Fraction of the optimizer steps of each chunk, in [0, 1), over which the learning rate rises linearly
            from 0 (paper: 0.1).
        channels_last: Store images and convolution weights with the channels innermost: faster on GPUs and CPUs.
        compile: Run the network through `torch.compile`, which takes minutes at first. Checkpoints of compiled and of
            plain networks are interchangeable.

    Raises:
        ValueError: If `warmup` is outside [0, 1) or `num_classes` below 2.
    """

    task_metric = "task_accuracy"
    task_key = "train/online_accuracy"

    def __init__(
        self,
        net: nn.Module,
        num_classes: int,
        optimizer: OptimizerFactory | None = None,
        parameter_groups: ParameterGroups | None = None,
        warmup: float = 0.1,
        channels_last: bool = False,
        compile: bool = False,
    ):
        super().__init__()
        if num_classes < 2:
            raise ValueError(f"`num_classes` must be at least 2, got {num_classes}")
        if not 0 <= warmup < 1:
            raise ValueError(f"`warmup` must be a fraction in [0, 1), got {warmup}")
        self.memory_format = torch.channels_last if channels_last else torch.contiguous_format
        self.net = net.to(memory_format=self.memory_format)
        if compile:
            self.net.compile()
        self.optimizer = optimizer or (lambda parameters: Adam(parameters, lr=1e-3))
        self.parameter_groups = parameter_groups
        self.warmup = warmup
        self.train_loss = MeanLoss()
        self.train_accuracy = OnlineAccuracy()
        self.task_accuracy = OnlineAccuracy()
        self.val_accuracy = MulticlassAccuracy(num_classes, average="micro")
        self.val_accuracy_seen = MulticlassAccuracy(num_classes, average="micro")

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits `(batch, num_classes)` of images `(batch, C, H, W)`."""
        return self.net(images.contiguous(memory_format=self.memory_format) if images.ndim == 4 else images)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Return the cross-entropy of a batch of images `(batch, C, H, W)` and labels `(batch,)`."""
        images, labels = batch
        logits = self(images)
        loss = cross_entropy(logits, labels)
        self.train_loss.update(loss, len(labels))
        self.train_accuracy.update(logits, labels)
        self.update_task(batch_idx, self._without_noise(images, logits), labels)
        return loss

    def _without_noise(self, images: Tensor, logits: Tensor) -> Tensor:
        """Return the logits of evaluation mode for online accuracy if the network draws random numbers in training."""
        if self._stream() is None or not any(isinstance(part, _NOISY) for part in self.net.modules()):
            return logits
        with self._evaluating():
            return self(images)

    def on_train_epoch_end(self) -> None:
        """Log the sums over the batches: `log` in each batch would double Lightning's overhead."""
        super().on_train_epoch_end()
        if self.train_loss.update_called:  # not if a subclass overrides training_step
            self.log("train/loss", self.train_loss)
            self.log("train/accuracy", self.train_accuracy)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self._evaluate(batch, "val")

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self._evaluate(batch, "test")

    def _evaluate(self, batch: tuple[Tensor, Tensor], stage: str) -> None:
        images, labels = batch
        logits = self(images)
        loss = cross_entropy(logits, labels)
        self.val_accuracy(logits, labels)
        self.log(f"{stage}/loss", loss, batch_size=len(labels), sync_dist=self._distributed)
        self.log(f"{stage}/accuracy", self.val_accuracy, prog_bar=True)
        if (seen := self._seen_classes()) is not None:
            among_seen = torch.isin(labels, seen)
            if among_seen.any():
                self.val_accuracy_seen.update(logits[among_seen], labels[among_seen])
                self.log(f"{stage}/accuracy_seen", self.val_accuracy_seen)

    def _evaluate_at_new_data(self, batch: tuple[Tensor, Tensor]) -> None:
        images, labels = batch
        if (seen := self._seen_classes()) is not None:
            images, labels = images[torch.isin(labels, seen)], labels[torch.isin(labels, seen)]
        if len(labels):
            self.val_accuracy.update(self(images), labels)

    def _values_at_new_data(self) -> dict[str, Tensor]:
        if not self.val_accuracy.update_called:
            return {}
        value = self.val_accuracy.compute()
        self.val_accuracy.reset()
        return {"val/accuracy_at_new_data": value}

    def _seen_classes(self) -> Tensor | None:
        datamodule = undeclared(self.trainer).datamodule
        seen = datamodule.seen_classes if implements(datamodule, HasSeenClasses) else None
        return None if seen is None else seen.to(self.device)

    def configure_optimizers(self) -> Any:
        """Return the optimizer and a schedule with a warm-up in each chunk."""
        groups: Any = self.parameter_groups(self) if self.parameter_groups else self.parameters()
        try:
            optimizer = self.optimizer(groups)
        except (ValueError, TypeError) as error:
            raise ValueError(f"`optimizer` cannot be made: {error}") from error
        return self._scheduled(optimizer, [self.warmup]) if self.warmup else {"optimizer": optimizer}
