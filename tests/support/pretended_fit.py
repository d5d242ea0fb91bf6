"""A fit on a pretended GPU."""

import itertools

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.strategies import SingleDeviceStrategy
from pretended import Pretended
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

BATCHES = 3


class _AnyDevice(CPUAccelerator):
    def setup_device(self, device):
        """Take devices that are not there."""


class Hidden(LightningModule):
    """A classifier with a number of hidden layers."""

    def __init__(self, depth):
        super().__init__()
        layers = [layer for _ in range(depth) for layer in (nn.ReLU(), nn.Linear(12, 12), nn.LayerNorm(12))]
        self.net = nn.Sequential(nn.Linear(6, 12), *layers, nn.ReLU(), nn.Linear(12, 3))

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


class _Count(Callback):
    """Reads the count of waits before each batch, and at the end."""

    def __init__(self, pretended):
        self.pretended, self.counts = pretended, []

    def on_train_batch_start(self, *args):
        self.counts.append(self.pretended.count)

    def on_train_end(self, *args):
        self.counts.append(self.pretended.count)


def waits_of_fit(*callbacks, depth=5, epochs=2, make=None):
    """Return the waits for the device in each batch of a fit; in the last ones of epochs with what ends these.

    `make` returns a module and its data, instead of `Hidden` and three batches.
    """
    with Pretended() as pretended:
        torch.manual_seed(0)
        data = DataLoader(TensorDataset(torch.randn(24, 6), torch.arange(24) % 3), batch_size=24 // BATCHES)
        module, data = (Hidden(depth), data) if make is None else make()
        count = _Count(pretended)
        Trainer(
            max_epochs=epochs,
            strategy=SingleDeviceStrategy(torch.device("cuda:0"), _AnyDevice()),
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            reload_dataloaders_every_n_epochs=int(make is not None),
            limit_val_batches=0 if make else None,
            callbacks=[count, *callbacks],
        ).fit(module, data)
    return [after - before for before, after in itertools.pairwise(count.counts)]
