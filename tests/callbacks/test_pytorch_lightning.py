"""Callbacks under `pytorch_lightning`, the other name of the same package: the same weights, logs and neighbours."""

import copy
from functools import partial

import lightning.pytorch as unified
import pytest
import torch
from methods_table import ALL, callback_of
from small_training import PlainModule, dataset
from torch.utils.data import DataLoader

import lightning_fire.data
from lightning_fire import EveryNEpochs, FIRECallback, PlasticityMonitor, RestartSchedulers

standalone = pytest.importorskip("pytorch_lightning")

EVERY_TWO_EPOCHS = EveryNEpochs(2)


def module_of(package):
    """The same module, of a class of one of the two packages."""
    members = {
        name: value for name, value in vars(PlainModule).items() if name in ("training_step", "configure_optimizers")
    }
    torch.manual_seed(0)
    module = type("Module", (package.LightningModule,), members)()
    module.net = copy.deepcopy(PlainModule().net)
    return module


def trained(package, *callbacks, logger=False, epochs=4):
    module = module_of(package)
    package.Trainer(
        max_epochs=epochs,
        callbacks=list(callbacks),
        logger=logger,
        accelerator="cpu",
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(module, DataLoader(dataset(), batch_size=6))
    return module


OTHERS = {"schedulers": lambda: RestartSchedulers(EVERY_TWO_EPOCHS), "monitor": PlasticityMonitor}


@pytest.mark.parametrize("name", [*ALL, *OTHERS])
def test_the_weights_are_those_of_lightning(name):
    build = OTHERS.get(name, partial(callback_of, name, EVERY_TWO_EPOCHS))
    one, other = trained(standalone, build()), trained(unified, build())
    for (key, value), (_, expected) in zip(one.state_dict().items(), other.state_dict().items(), strict=True):
        assert torch.equal(value, expected), key


def test_histograms_are_logged(tmp_path):
    event_files = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    tags = {}
    for package in (standalone, unified):
        folder = tmp_path / package.__name__
        trained(package, FIRECallback(EVERY_TWO_EPOCHS), logger=package.loggers.TensorBoardLogger(folder, "", ""))
        events = event_files.EventAccumulator(str(folder)).Reload()
        tags[package] = events.Tags()["histograms"], events.Tags()["scalars"]
    assert len(tags[standalone][0]) == 6
    assert tags[standalone] == tags[unified]


def test_early_stopping_restarts_its_patience():
    class Worse(standalone.Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            pl_module.log("loss", [0.1, 0.9, 0.8, 0.7, 0.6, 0.5][trainer.current_epoch])

    stopping = standalone.callbacks.EarlyStopping("loss", patience=3)
    module = trained(standalone, FIRECallback(EVERY_TWO_EPOCHS), Worse(), stopping, epochs=6)
    assert module.trainer.current_epoch == 6
    assert stopping.best_score == 0.5


def test_our_data_names_the_trainer_that_it_needs():
    data = lightning_fire.data.SmallFashionMNISTDataModule()
    trainer = standalone.Trainer(logger=False, accelerator="cpu", enable_checkpointing=False)
    with pytest.raises(
        TypeError, match=r"SmallFashionMNISTDataModule needs the Trainer of lightning\.pytorch, got that of"
    ):
        trainer.fit(module_of(standalone), datamodule=data)
