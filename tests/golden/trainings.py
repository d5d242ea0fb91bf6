"""Small trainings with callbacks, undisturbed and resumed, and their digests."""

import tempfile
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.loggers.logger import Logger
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
from torchvision.ops import MLP

from lightning_fire import announce_new_data
from lightning_fire.data import ChunkedDataModule, ReplayDataModule, TextDataModule
from lightning_fire.data.protocols import WarmStart
from lightning_fire.data.streams import PermutedLabels
from lightning_fire.data.token_source import Tokens, TokenSource
from lightning_fire.experience import Gymnasium
from lightning_fire.modules import DQN, Classifier, LanguageModel
from lightning_fire.nets import GPT
from lightning_fire.optim import Muon, muon_groups

from .digests import Digests, Records, compared, digest, is_kept, of_model, of_records

MakeCallbacks = Callable[[], Sequence[pl.Callback]]


def images(number: int, seed: int) -> TensorDataset:
    """Random images (number, 2, 6, 6) of 4 classes that differ in their means."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (number,), generator=generator)
    return TensorDataset(torch.randn(number, 2, 6, 6, generator=generator) + labels.view(-1, 1, 1, 1) / 2, labels)


def net() -> nn.Sequential:
    """Two convolutions, the first with BatchNorm, and two Linear layers; some units of each hidden layer are dead."""
    layers = {
        "conv1": nn.Conv2d(2, 6, 3, padding=1, bias=False),
        "norm": nn.BatchNorm2d(6),
        "relu1": nn.ReLU(),
        "conv2": nn.Conv2d(6, 8, 3),
        "relu2": nn.ReLU(),
        "pool": nn.MaxPool2d(2),
        "flatten": nn.Flatten(),
        "fc": nn.Linear(32, 12),
        "relu3": nn.ReLU(),
        "head": nn.Linear(12, 4),
    }
    with torch.no_grad():
        layers["norm"].weight[4:], layers["norm"].bias[4:] = 0.0, -1.0
        layers["conv2"].bias[:2], layers["fc"].bias[:3] = -50.0, -50.0
    return nn.Sequential(OrderedDict(layers))


class Module(pl.LightningModule):
    """A user's module: Adam, a schedule of the learning rate, scalars logged in training and validation."""

    def __init__(self):
        super().__init__()
        self.net = net()

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        x, y = batch
        return 1.5 * x, y

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        loss = cross_entropy(self.net(x), y)
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        output = self.net(x)
        self.log_dict({"val/loss": cross_entropy(output, y), "val/accuracy": (output.argmax(1) == y).float().mean()})

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]


class Scheduled(Module):
    """A schedule whose length is that of the training on the data of the moment."""

    def configure_optimizers(self) -> Any:
        optimizer, length = torch.optim.Adam(self.parameters(), lr=1e-2), self.trainer.estimated_stepping_batches
        return [optimizer], [torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1 / (1 + 9 * epoch / length))]


class MuonModule(Module):
    """Muon for hidden matrices."""

    def configure_optimizers(self) -> Any:
        return Muon(muon_groups(self.net), lr=1e-2)


class Frozen(Module):
    """The first convolution and a bias are not trained; with dropout, whose draws nothing else may disturb."""

    def __init__(self):
        super().__init__()
        self.net.relu3 = nn.Sequential(nn.ReLU(), nn.Dropout(0.2))
        for parameter in (self.net.conv1.weight, self.net.fc.bias):
            parameter.requires_grad_(False)


class TwoOptimizers(Module):
    """Manual optimization: SGD for the body, and Adam for the head at every second batch."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def loss_on(self, batch: Any) -> Tensor:
        x, y = batch
        return cross_entropy(self.net(x), y)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        body, head = self.optimizers()
        loss = self.loss_on(batch)
        self.log("train/loss", loss)
        self.manual_backward(loss)
        body.step()
        body.zero_grad()
        if batch_idx % 2:
            head.step()
            head.zero_grad()

    def configure_optimizers(self) -> Any:
        body = [parameter for name, parameter in self.named_parameters() if "head" not in name]
        return [
            torch.optim.SGD(body, lr=0.02, momentum=0.9),
            torch.optim.Adam(self.net.head.parameters(), lr=1e-2, amsgrad=True),
        ]


def warm_start() -> ChunkedDataModule:
    """Two chunks: 3 batches in each of 2 epochs, then 5 in each of 2."""
    return ChunkedDataModule(images(40, 1), images(16, 2), WarmStart(0.5, (2, 2)), batch_size=8)


def classifier() -> Classifier:
    return Classifier(net(), 4, partial(torch.optim.Adam, lr=1e-2))


def stream() -> ChunkedDataModule:
    """Four tasks of 3 batches, one epoch each."""
    return ChunkedDataModule(images(40, 1), images(16, 2), PermutedLabels(4, 24, 1), batch_size=8)


class AnnouncingData(pl.LightningDataModule):
    """Two sets in plain loaders, the second announced at epoch 2."""

    def train_dataloader(self) -> DataLoader:
        second = self.trainer.current_epoch >= 2
        if self.trainer.current_epoch == 2:
            announce_new_data(self.trainer)
        order = torch.Generator().manual_seed(self.trainer.current_epoch)
        return DataLoader(images(24, 3 + second), batch_size=6, shuffle=True, generator=order)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(images(16, 2), batch_size=8)


def dqn() -> DQN:
    optimizer = partial(torch.optim.Adam, lr=1e-2)
    return DQN(MLP(4, [16, 16, 2]), optimizer, target_update_period=7, epsilon_steps=40)


def cart_pole() -> ReplayDataModule:
    small = {"steps_per_epoch": 16, "batch_size": 8, "capacity": 200, "initial_steps": 10, "evaluation_episodes": 1}
    return ReplayDataModule(Gymnasium("CartPole-v1"), **small)


class Texts(TextDataModule):
    """Tokens that rise, and others that fall, in memory."""

    def load(self) -> dict[str, TokenSource]:
        rising = np.tile(np.arange(16, dtype=np.uint16), 60)
        texts = {"rising": rising, "falling": rising[::-1].copy()}
        return {name: TokenSource(Tokens(text), Tokens(text[:100]), 16) for name, text in texts.items()}


def texts() -> Texts:
    phases = [{"rising": 1.0}, {"falling": 3.0, "rising": 1.0}]
    return Texts({"rising": "", "falling": ""}, phases, 2, steps_per_epoch=4, batch_size=4, block_size=8)


def gpt() -> LanguageModel:
    transformer = GPT(vocab_size=16, block_size=8, depth=1, heads=2, dim=16, bias=True)
    return LanguageModel(transformer, learning_rate=0.01, min_learning_rate=0.001, warmup=[2, 0.25])


class Memory(Logger):
    """Keeps what is logged."""

    def __init__(self, records: Records = ()):
        super().__init__()
        self.records = list(records)

    name = version = "memory"

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.records += [(key, step, float(value)) for key, value in metrics.items()]

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None: ...


class Saver(pl.Callback):
    """Writes the checkpoints that a `Training` names. It is the last callback."""

    def __init__(self, folder: Path, training: "Training"):
        self.folder, self.training, self.done = folder, training, 0
        self.saved: list[str] = []

    def path(self, when: str) -> Path:
        return self.folder / f"{when}.ckpt"

    def _save(self, trainer: pl.Trainer, when: str) -> None:
        trainer.save_checkpoint(self.path(when))
        self.saved.append(when)

    def on_train_batch_start(self, trainer: pl.Trainer, *args: Any) -> None:
        self.done += 1
        if self.done in self.training.starts:
            self._save(trainer, f"start of batch {self.done}")

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
        if self.done in self.training.batches:
            self._save(trainer, f"batch {self.done}")

    def on_train_epoch_end(self, trainer: pl.Trainer, *args: Any) -> None:
        if trainer.current_epoch in self.training.ends:
            self._save(trainer, f"epoch {trainer.current_epoch}")


class LogsOfSaved(pl.Callback):
    """Keeps what was logged up to each checkpoint, that of the batch or epoch included. It is the first callback."""

    def __init__(self, logger: Memory, saver: Saver):
        self.logger, self.saver = logger, saver
        self.records: dict[str, Records] = {}

    def on_train_batch_start(self, *args: Any) -> None:
        for when in self.saver.saved:
            self.records.setdefault(when, list(self.logger.records))

    on_train_epoch_start = on_train_batch_start

    def on_train_batch_end(self, *args: Any) -> None:
        """Keep those of a checkpoint at the start of this batch, whose own values are logged later."""
        self.on_train_batch_start()


@dataclass(frozen=True)
class Training:
    """A small training.

    Args:
        module: Function that makes the module.
        data: Function that makes the data.
        epochs: Number of epochs.
        options: Of the Trainer.
        batches: Batches after which a checkpoint is written, from which the training is resumed, counted from 1.
        ends: Epochs at whose end a checkpoint is written, from 0.
        starts: Batches before which a checkpoint is written, after what callbacks do at their start, counted from 1.
    """

    module: Callable[[], pl.LightningModule] = Module
    data: Callable[[], pl.LightningDataModule] = warm_start
    epochs: int = 4
    options: dict[str, Any] = field(default_factory=dict)
    batches: Sequence[int] = (8,)
    ends: Sequence[int] = (1,)
    starts: Sequence[int] = ()

    def digests(self, callbacks: MakeCallbacks) -> Digests:
        """Return the digests of the whole training, and of the resumed ones those that differ from it."""
        with tempfile.TemporaryDirectory() as folder:
            logger = Memory()
            saver = Saver(Path(folder), self)
            logs = LogsOfSaved(logger, saver)
            found = whole = self._fit(Path(folder), logger, [logs, *callbacks(), saver], None)
            assert len(saver.saved) == len([*self.batches, *self.ends, *self.starts]), (
                f"checkpoints only after {saver.saved}"
            )
            for when in saver.saved:
                resumed = self._fit(Path(folder), Memory(logs.records[when]), callbacks(), saver.path(when))
                found = compared(found, whole, resumed, f"resumed after {when}", _NOT_IN_CHECKPOINTS)
            return found

    def _fit(self, folder: Path, logger: Memory, callbacks: Sequence[pl.Callback], checkpoint: Path | None) -> Digests:
        torch.manual_seed(1 if checkpoint is None else 2)  # all must come from the checkpoint
        module, data = self.module(), self.data()
        trainer = trainer_of(folder, logger, callbacks, self.epochs, **self.options)
        trainer.fit(module, datamodule=data, ckpt_path=checkpoint, weights_only=False)
        return digests_of(trainer, module, logger)


@dataclass(frozen=True)
class SeveralFits:
    """Three fits of two epochs, each on a loader of its own.

    Args:
        separate: Whether each fit has a new module, new callbacks and a new Trainer, and continues from a checkpoint,
            as in another process; otherwise all are the same.
    """

    separate: bool = False

    def digests(self, callbacks: MakeCallbacks) -> Digests:
        """Return the digests after the last fit."""
        with tempfile.TemporaryDirectory() as folder:
            logger, module, trainer, checkpoint = Memory(), None, None, None
            for fit in range(3):
                if self.separate or trainer is None:
                    torch.manual_seed(1 + fit)
                    module, trainer = Module(), trainer_of(Path(folder), logger, callbacks(), 0)
                trainer.fit_loop.max_epochs = 2 * fit + 2
                loader = DataLoader(images(24, 3 + fit), batch_size=6, shuffle=True)
                validation = DataLoader(images(16, 2), batch_size=8)
                trainer.fit(module, loader, validation, ckpt_path=checkpoint, weights_only=False)
                if self.separate:
                    trainer.save_checkpoint(checkpoint := f"{folder}/{fit}.ckpt")
            return digests_of(trainer, module, logger)


@dataclass(frozen=True)
class Joined:
    """A training that is resumed in an epoch, and only then with callbacks."""

    def digests(self, callbacks: MakeCallbacks) -> Digests:
        """Return the digests of the resumed training."""
        with tempfile.TemporaryDirectory() as folder:
            before = Training(batches=(8,), ends=())
            saver = Saver(Path(folder), before)
            before._fit(Path(folder), Memory(), [saver], None)
            return before._fit(Path(folder), Memory(), callbacks(), saver.path("batch 8"))


def trainer_of(
    folder: Path, logger: Memory, callbacks: Sequence[pl.Callback], epochs: int, **options: Any
) -> pl.Trainer:
    checkpointing = any(isinstance(callback, pl.callbacks.ModelCheckpoint) for callback in callbacks)
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": checkpointing}
    quiet |= {"accelerator": "cpu", "num_sanity_val_steps": 0, "log_every_n_steps": 1}
    quiet |= {"default_root_dir": folder, "reload_dataloaders_every_n_epochs": 1}
    return pl.Trainer(max_epochs=epochs, logger=logger, callbacks=list(callbacks), **{**quiet, **options})


def digests_of(trainer: pl.Trainer, module: pl.LightningModule, logger: Memory) -> Digests:
    """Digest all that a training leaves behind."""
    metrics = {key: value for key, value in trainer.callback_metrics.items() if is_kept(key)}
    found = {
        **of_model(module, trainer.optimizers),
        "random state": digest(torch.get_rng_state()),
        "callback_metrics": digest(metrics),
        **of_records(logger.records),
    }
    for callback in trainer.callbacks:
        if state := {name: vars(callback)[name] for name in _OF_NEIGHBOURS if name in vars(callback)}:
            found[type(callback).__name__] = digest(state)
    return found


_NOT_IN_CHECKPOINTS = ("random state", "callback_metrics")
_OF_NEIGHBOURS = ("best_score", "wait_count", "best_model_score", "kth_value")
