"""An event uses the batch in hand: no data is read for it in the process of the training, and none twice."""

import os

import pytest
import torch
from lightning.pytorch import Callback, LightningDataModule
from lightning.pytorch.callbacks import ModelCheckpoint
from small_training import GrowingData, PlainModule, assert_same_weights, dataset, fitted, snapshots_of, trainer
from torch.utils.data import DataLoader, Dataset, IterableDataset

from lightning_fire import (
    DASH,
    FIRE,
    AtEpochs,
    EveryNSteps,
    FeatureRank,
    FIRECallback,
    Log,
    PlasticityCallback,
    PlasticityMonitor,
    ReDo,
)

NO_CURVATURE = Log(curvature=False)


class Counting(Dataset):
    """Notes in which process its samples are read."""

    def __init__(self):
        self.samples, self.read = dataset(24), []

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        self.read.append(os.getpid())
        return *self.samples[index], torch.tensor(index)


class Once(IterableDataset):
    """A stream of 40 samples that is never read again."""

    def __init__(self):
        self.stream = iter(dataset(40))

    def __iter__(self):
        return self.stream


class Popping(PlainModule):
    """Takes the labels out of the batch, and scales its inputs in place."""

    def training_step(self, batch, batch_idx):
        labels = batch.pop()
        batch[0].mul_(0.5)
        return torch.nn.functional.cross_entropy(self.net(batch[0]), labels)


class Keeping(PlainModule):
    """Keeps the numbers of its samples, by step."""

    def __init__(self):
        super().__init__()
        self.seen = {}

    def training_step(self, batch, batch_idx):
        self.seen[self.trainer.global_step] = batch[2].tolist()
        return super().training_step(batch[:2], batch_idx)


def fit(module, loader, *callbacks, kind=None, **options):
    if kind is not None:
        torch.manual_seed(0)
        module = kind()
    data = LightningDataModule()
    data.train_dataloader = lambda: loader
    return fitted(*callbacks, module=module, data=data, **options)


def test_data_that_can_be_read_once_is_enough():
    fire, redo = snapshots_of(FIRECallback)(EveryNSteps(2)), snapshots_of(PlasticityCallback)(ReDo(), EveryNSteps(2))
    monitor, loader = PlasticityMonitor(data_every_n_steps=1), DataLoader(Once(), batch_size=4)
    module = fit(PlainModule(), loader, fire, redo, monitor, max_epochs=1)
    assert module.trainer.global_step == 10
    assert len(fire.seen) == len(redo.seen) == 4
    assert all(values["fire/lambda_max_before"] > 0 for *_, values in fire.seen)
    assert "plasticity/dormant_fraction" in module.trainer.callback_metrics


def test_dash_uses_the_batch_in_hand_alone_of_data_that_can_be_read_once():
    dash, loader = snapshots_of(PlasticityCallback)(DASH(), EveryNSteps(2), log=NO_CURVATURE), DataLoader(Once(), 4)
    with pytest.warns(UserWarning, match="Events use 1 batch instead of 26: the data of DataLoader may be readable"):
        fit(PlainModule(), loader, dash, max_epochs=1)
    assert [values["dash/batches"] for *_, values in dash.seen] == [1] * 4


@pytest.mark.parametrize("method", [FIRE(), DASH(num_batches=3)])
def test_data_is_read_for_an_event_only_in_worker_processes(method):
    found = []
    for callbacks in ([snapshots_of(PlasticityCallback)(method, AtEpochs([1]), log=NO_CURVATURE)], []):
        data, generator, module = Counting(), torch.Generator().manual_seed(1), Keeping()
        fit(module, DataLoader(data, 6, shuffle=True, generator=generator), *callbacks, max_epochs=2)
        assert data.read == [os.getpid()] * 48
        assert all(len(callback.seen) == 1 for callback in callbacks)
        found.append((module.seen, generator.get_state().tolist()))  # the same samples, in the same order
    assert found[0] == found[1]


def test_a_training_step_may_change_its_batch():
    results = []
    for callbacks in ([], [PlasticityMonitor(data_every_n_steps=1), FeatureRank(lr=0.0, every_n_batches=2)]):
        results.append(fit(None, DataLoader(dataset(24), 6), *callbacks, max_epochs=1, kind=Popping))
    assert_same_weights(*results)
    assert "plasticity/dormant_fraction" in results[1].trainer.callback_metrics


@pytest.mark.parametrize("asks", [False, True])
def test_a_resumed_loader_goes_on_also_if_the_optimizers_ask_for_its_length(tmp_path, asks):
    class Stateful(DataLoader):
        """Sequential; continues after the batches of a state."""

        done, start = 0, 0

        def __iter__(self):
            start, self.start = self.start, 0
            for self.done, batch in enumerate(super().__iter__(), 1):
                if self.done > start:
                    yield batch

        def state_dict(self):
            return {"done": self.done}

        def load_state_dict(self, state):
            self.start = state["done"]

    class Asking(Keeping):
        def configure_optimizers(self):
            assert not asks or self.trainer.estimated_stepping_batches == 8
            return super().configure_optimizers()

    def run(ckpt_path=None):
        saves = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=1, save_top_k=-1)
        options = {"max_epochs": 2, "reload_dataloaders_every_n_epochs": 0}
        loader = Stateful(Counting(), batch_size=6)
        return fit(None, loader, FIRECallback(AtEpochs([1])), saves, kind=Asking, ckpt_path=ckpt_path, **options)

    whole = run()
    resumed = run(tmp_path / "step=2.ckpt")
    assert resumed.seen == {step: seen for step, seen in whole.seen.items() if step >= 2}
    assert_same_weights(whole, resumed)


@pytest.mark.filterwarnings("ignore:You are using the `dataloader_iter`", "ignore:Found `dataloader_iter`")
def test_the_module_is_not_run_where_training_step_takes_the_iterator(caplog):
    class Iterating(PlainModule):
        def training_step(self, dataloader_iter):
            batch, *_ = next(dataloader_iter)
            return super().training_step(batch, 0)

    class Noting(Callback):
        def on_train_end(self, trainer, pl_module):
            self.steps = trainer.global_step

    fire, noting = snapshots_of(FIRECallback)(EveryNSteps(2)), Noting()
    fit(Iterating(), DataLoader(dataset(24), 6), fire, noting, max_epochs=1)
    assert noting.steps == 4 and len(fire.seen) == 1
    assert "lambda_max is not logged: training_step takes its batches itself, from dataloader_iter" in caplog.text


def test_persistent_workers_continue_to_serve_the_training():
    class Workers(GrowingData):
        def train_dataloader(self):
            data = super().train_dataloader().dataset
            return DataLoader(data, batch_size=6, num_workers=1, persistent_workers=True)

    one, other = (
        fitted(PlasticityCallback(DASH(), AtEpochs([1])), data=kind((2,)), max_epochs=2)
        for kind in (Workers, GrowingData)
    )
    assert_same_weights(one, other)


def test_several_loaders_and_a_training_step_without_index():
    class Pair(PlainModule):
        def training_step(self, batch):
            return super().training_step(batch["a"], 0) + super().training_step(batch["b"], 0)

    loaders = {"a": DataLoader(dataset(), batch_size=6), "b": DataLoader(dataset(seed=1), batch_size=6)}
    callback = snapshots_of(PlasticityCallback)(DASH(), AtEpochs([1]))
    torch.manual_seed(0)
    trainer(callback, max_epochs=2).fit(Pair(), loaders)
    before, after, values = callback.seen[0]
    assert values["dash/batches"] == 4
    assert not torch.equal(before["net.3.weight"], after["net.3.weight"])
