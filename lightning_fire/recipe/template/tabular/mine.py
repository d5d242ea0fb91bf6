"""Your weeks and your network, for `recipe.yaml`. The rows come from `table.py`."""

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from table import CATEGORIES, NUMBERS, read_week
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


class Weeks(LightningDataModule):
    """Weeks that arrive: training on the latest weeks, validation on the next one, which training has not seen.

    Args:
        rows: Rows per week of the made-up table.
        drift: Change of the made-up table from week to week, from 0 to 1.
        weeks: Number of weeks to train on, one after another.
        epochs: Epochs per week.
        window: Number of latest weeks in the training data; 1: only the new one.
        batch_size: Rows per batch.
        seed: Seed of the order of the rows.
    """

    def __init__(
        self, rows: int, drift: float, weeks: int, epochs: int, window: int, batch_size: int = 256, seed: int = 0
    ):
        super().__init__()
        self.num_chunks, self.epochs, self.window, self.batch_size, self.seed = weeks, epochs, window, batch_size, seed
        self.total_epochs = weeks * epochs
        self.weeks = [read_week(week, rows, drift) for week in range(weeks + 1)]

    def chunk_at(self, epoch: int) -> int:
        """Return the newest week of an epoch."""
        return min(epoch // self.epochs, self.num_chunks - 1)

    @property
    def chunk(self) -> int:
        """The newest week. When it changes, there is new data, and methods act."""
        return self.chunk_at(self.trainer.current_epoch) if self.trainer else 0

    def train_dataloader(self) -> DataLoader:
        latest = self.weeks[max(0, self.chunk + 1 - self.window) : self.chunk + 1]
        rows = TensorDataset(*map(torch.cat, zip(*latest, strict=True)))
        order = torch.Generator().manual_seed(1000 * self.seed + self.trainer.current_epoch)
        return self.batches(rows, RandomSampler(rows, generator=order))

    def val_dataloader(self) -> DataLoader:
        rows = TensorDataset(*self.weeks[self.chunk + 1])
        return self.batches(rows, range(len(rows)))

    def batches(self, rows: TensorDataset, order) -> DataLoader:
        """Return a loader that reads whole batches from the table, not row by row."""
        return DataLoader(rows, sampler=BatchSampler(order, self.batch_size, drop_last=False), batch_size=None)


class Demand(LightningModule):
    """Network with an embedding for each category, trained and measured by the mean absolute error."""

    def __init__(self, dimension: int = 8, width: int = 64, lr: float = 0.01):
        super().__init__()
        self.lr = lr
        self.embeddings = nn.ModuleList(nn.Embedding(size, dimension) for size in CATEGORIES.values())
        layers = [nn.Linear(dimension * len(CATEGORIES) + len(NUMBERS), width), nn.ReLU()]
        self.net = nn.Sequential(*layers, nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, codes: Tensor, numbers: Tensor) -> Tensor:
        embedded = [embedding(codes[:, column]) for column, embedding in enumerate(self.embeddings)]
        return self.net(torch.cat([*embedded, numbers], dim=1)).squeeze(1)

    def training_step(self, batch, batch_idx):
        codes, numbers, targets = batch
        return nn.functional.l1_loss(self(codes, numbers), targets)

    def validation_step(self, batch, batch_idx):
        self.log("val/mae", self.training_step(batch, batch_idx))

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.lr)
        # the steps of one week: RestartSchedulers, in the recipe, calls this again for the next week
        steps = self.trainer.estimated_stepping_batches // self.trainer.max_epochs * self.trainer.datamodule.epochs
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, self.lr, total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
