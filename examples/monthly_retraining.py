"""Retrain a network each month, in a process of its own, on all images that there are by then.

python monthly_retraining.py 0 weights FOLDER      # then 1, 2, …; after an interruption the same command again
python monthly_retraining.py 0 checkpoint FOLDER   # the same, but the optimizer and the count of epochs continue
"""

import sys
from pathlib import Path

import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_fire import AtNewData, FIRECallback
from lightning_fire.data import SmallFashionMNISTDataModule

EPOCHS = 4  # a month


class Months(LightningDataModule):
    def __init__(self, month: int):
        super().__init__()
        self.chunk = month  # distinguishes the data for FIRECallback
        self.train, self.test = SmallFashionMNISTDataModule().load()

    def train_dataloader(self):
        images, labels = self.train[: 1000 * (self.chunk + 1)]
        epoch = torch.Generator().manual_seed(self.trainer.current_epoch)  # a resume repeats the order
        order = torch.randperm(len(labels), generator=epoch)
        return DataLoader(TensorDataset(images[order] / 255, labels[order]), batch_size=50)

    def val_dataloader(self):
        images, labels = self.test[:]
        return DataLoader(TensorDataset(images / 255, labels), batch_size=1000)


class Network(LightningModule):
    def __init__(self):
        super().__init__()
        layers = [nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)]
        self.net = nn.Sequential(*layers)

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        self.log("accuracy", (self.net(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


def main(month: int, way: str, folder: Path) -> None:
    seed_everything(0)
    last_month, this_month = folder / f"month{month - 1}.ckpt", folder / f"month{month}.ckpt"
    checkpoint = this_month if this_month.exists() else None  # it is there if this month was interrupted
    if way == "weights":
        model = Network.load_from_checkpoint(last_month) if month else Network()
        fire, epochs = FIRECallback(when=AtNewData(skip_first=month == 0)), EPOCHS
    else:
        model, fire, epochs = Network(), FIRECallback(), EPOCHS * (month + 1)
        checkpoint = checkpoint or (last_month if month else None)
    save = ModelCheckpoint(folder, f"month{month}", enable_version_counter=False)  # after each epoch
    trainer = Trainer(
        max_epochs=epochs, callbacks=[fire, save], reload_dataloaders_every_n_epochs=1, logger=False, accelerator="cpu"
    )
    trainer.fit(model, Months(month), ckpt_path=checkpoint)
    if "accuracy" in trainer.callback_metrics:  # not if this month had ended before
        print(f"month {month}: accuracy {float(trainer.callback_metrics['accuracy']):.3f}")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
