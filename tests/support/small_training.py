"""A small user project: a plain LightningModule and plain DataModules, independent of this package."""

import inspect
from pathlib import Path

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def dataset(size: int = 24, seed: int = 0) -> TensorDataset:
    """Random inputs (size, 6) with labels in {0, 1, 2}."""
    generator = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.randn(size, 6, generator=generator), torch.randint(0, 3, (size,), generator=generator))


class PlainModule(pl.LightningModule):
    """An MLP with Adam."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)
        )

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)


class PlainData(pl.LightningDataModule):
    """One set, as most DataModules have it: 4 batches an epoch."""

    def __init__(self, seed: int = 0):
        super().__init__()
        self.seed = seed

    def train_dataloader(self):
        return DataLoader(dataset(seed=self.seed), batch_size=6)


class GrowingData(pl.LightningDataModule):
    """Announces its chunks by a `chunk` attribute: 2 batches an epoch in chunk 0, 4 in chunk 1, 6 in chunk 2, ...."""

    def __init__(self, epochs_per_chunk: tuple[int, ...] = (2, 2, 2)):
        super().__init__()
        self.chunks = [chunk for chunk, epochs in enumerate(epochs_per_chunk) for _ in range(epochs)]
        self.num_chunks = len(epochs_per_chunk)

    @property
    def chunk(self) -> int:
        return self.chunks[min(self.trainer.current_epoch, len(self.chunks) - 1)]

    def train_dataloader(self):
        return DataLoader(dataset(size=12 * (self.chunk + 1)), batch_size=6)


def trainer(*callbacks: pl.Callback, max_epochs: int | None = 6, folder: Path | None = None, **options) -> pl.Trainer:
    """A quiet Trainer on the CPU that reloads its data each epoch; logs to TensorBoard where it gets a folder."""
    quiet = {
        "accelerator": "cpu",
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": any(isinstance(callback, pl.callbacks.ModelCheckpoint) for callback in callbacks),
        "reload_dataloaders_every_n_epochs": 1,
        "log_every_n_steps": 1,
        "logger": pl.loggers.TensorBoardLogger(folder, name="", version="") if folder else False,
    }
    return pl.Trainer(max_epochs=max_epochs, callbacks=list(callbacks), **{**quiet, **options})


def fitted(
    *callbacks: pl.Callback, data=None, module=None, seed: int = 0, ckpt_path=None, **options
) -> pl.LightningModule:
    """Train a `PlainModule` of a given seed; return it."""
    torch.manual_seed(seed)
    module = module or PlainModule()
    trainer(*callbacks, **options).fit(module, datamodule=data or GrowingData(), ckpt_path=ckpt_path)
    return module


def resumed_from(path: object, weights_only: bool = True) -> dict[str, object]:
    """Arguments of `Trainer.fit` and `test`; before lightning 2.6 `weights_only` did not exist."""
    known = "weights_only" in inspect.signature(pl.Trainer.fit).parameters
    return {"ckpt_path": path, **({"weights_only": weights_only} if known else {})}


class OwnSequential(nn.Sequential):
    """A network that torch 2.6 compiles by its `compile`, which leaves a bare `nn.Sequential` as it is."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)


def assert_same_weights(one: nn.Module, other: nn.Module) -> None:
    """Bit for bit."""
    for (name, a), (_, b) in zip(one.state_dict().items(), other.state_dict().items(), strict=True):
        assert torch.equal(a, b), f"{name} differs"


def initial_state(seed: int = 0) -> dict[str, torch.Tensor]:
    """The state with which `fitted` begins."""
    torch.manual_seed(seed)
    return PlainModule().state_dict()


def state_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """A copy of its state."""
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def snapshots_of(method: type) -> type:
    """Derive a callback that keeps, for each event, the state before and after it, what it logs, and when it is."""

    class Snapshots(method):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            self.seen, self.epochs, self.steps = [], [], []

        def act(self, trainer, pl_module, clock):
            self.epochs.append(trainer.current_epoch)
            self.steps.append(trainer.global_step)
            before = state_of(pl_module)
            values = super().act(trainer, pl_module, clock)
            self.seen.append((before, state_of(pl_module), values))
            self.optimizer_state = dict(trainer.optimizers[0].state)
            return values

    return Snapshots
