"""Measurements on upcoming batches leave the module, the data and the random generators unchanged."""

import random
import threading
from collections import deque

import numpy as np
import pytest
import torch
from small_training import GrowingData, PlainData, PlainModule, assert_same_weights, dataset, fitted
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler, Sampler
from torchmetrics import MeanMetric, MinMaxMetric
from torchmetrics.classification import MulticlassAccuracy

from lightning_fire import DASH, AtNewData, FIRECallback, Log, PlasticityCallback, PlasticityMonitor
from lightning_fire.callbacks.probing.batches import without_side_effects
from lightning_fire.methods import ContinualBackprop, Loop

LOOKING = {
    "fire": lambda: FIRECallback(AtNewData(skip_first=False)),
    "monitor": lambda: PlasticityMonitor(data_every_n_steps=1, num_batches=2, log=Log(curvature=True)),
}


class Collecting(PlainModule):
    """Changes attributes of all kinds in its training step, and uses some of them."""

    def __init__(self):
        super().__init__()
        self.losses, self.seen, self.by_key = [], set(), {"loss": []}
        self.accuracy, self.recent = MulticlassAccuracy(3), deque(maxlen=3)
        self.wrapped = MinMaxMetric(MeanMetric())
        self.hidden, self.count = torch.zeros(3), 0
        self.register_buffer("running", torch.zeros(3))
        self.slow = nn.Linear(8, 3).requires_grad_(False)

    def on_train_epoch_start(self):
        self.losses = []

    def training_step(self, batch, batch_idx):
        x, y = batch
        features = self.net[:-1](x)
        logits = self.net[-1](features)
        self.running = 0.9 * self.running + 0.1 * logits.detach().mean(0)  # bound to another tensor
        self.hidden = 0.5 * self.hidden + logits.detach().mean(0)
        with torch.no_grad():
            for old, new in zip(self.slow.parameters(), self.net[-1].parameters(), strict=True):
                old.mul_(0.9).add_(new, alpha=0.1)  # an EMA
        self.count += 1
        loss = nn.functional.cross_entropy(logits + self.running + self.hidden + self.slow(features), y)
        loss = loss * (1 + 0.01 * self.count)
        self.losses.append(loss.detach())
        self.seen.add(round(loss.item(), 6))
        self.by_key["loss"].append(loss.item())
        self.recent.append(loss.item())
        self.accuracy.update(logits, y)
        self.wrapped.update(loss.detach())
        self.wrapped.compute()
        return loss


def with_and_without(looking, module=PlainModule, data=GrowingData, **options):
    """Train with and without measurements, to equal weights; return both modules."""
    quiet = [FIRECallback(AtNewData(skip_first=False), log=Log(curvature=False))] if looking == "fire" else []
    runs = []
    for callbacks in ([LOOKING[looking]()], quiet):
        torch.manual_seed(0)
        runs.append(fitted(*callbacks, module=module(), data=data(), **options))
    assert_same_weights(*runs)
    return runs


@pytest.mark.parametrize("looking", LOOKING)
def test_attributes_of_a_training_step_are_as_without_measurements(looking):
    one, other = with_and_without(looking, module=Collecting)
    assert len(one.losses) == len(other.losses) == 6
    assert one.count == other.count == 24
    for name in ("seen", "by_key", "recent"):
        assert getattr(one, name) == getattr(other, name)
    assert one.accuracy.compute() == other.accuracy.compute()
    assert one.wrapped.compute() == other.wrapped.compute()
    assert torch.equal(one.hidden, other.hidden)


class Noisy(Dataset):
    """With random generators of its own."""

    def __init__(self, kind):
        self.data = dataset()
        self.generator = {
            "numpy": np.random.default_rng(1),
            "old numpy": np.random.RandomState(1),
            "python": random.Random(1),
            "torch": torch.Generator().manual_seed(1),
        }[kind]

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        x, y = self.data[index]
        draw = self.generator
        noise = torch.rand((), generator=draw).item() if isinstance(draw, torch.Generator) else draw.random()
        return x + noise, y


class Nested(Sampler):
    def __init__(self, data):
        self.inner = RandomSampler(data, generator=torch.Generator().manual_seed(1))

    def __iter__(self):
        return iter(self.inner)

    def __len__(self):
        return len(self.inner)


class RandomData(PlainData):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.samples = dataset() if kind == "sampler" else Noisy(kind)
        self.sampler = Nested(self.samples) if kind == "sampler" else None

    def train_dataloader(self):
        return DataLoader(self.samples, batch_size=6, sampler=self.sampler)


@pytest.mark.parametrize("kind", ["numpy", "old numpy", "python", "torch", "sampler"])
@pytest.mark.parametrize("looking", LOOKING)
def test_random_generators_of_the_data_are_restored(looking, kind):
    with_and_without(looking, data=lambda: RandomData(kind), max_epochs=2)


def test_random_states_and_the_module_are_restored_after_an_error():
    module = PlainModule()
    mine = module.log = lambda *args, **kwargs: None
    before = torch.get_rng_state()
    with pytest.raises(ValueError, match="no"), without_side_effects(module):
        torch.randn(3)
        module.extra = 1
        raise ValueError("no")
    assert torch.equal(torch.get_rng_state(), before)
    assert module.log is mine
    assert not hasattr(module, "extra")


class Seen(Dataset):
    """Notes which samples were asked for."""

    def __init__(self):
        self.data, self.asked = dataset(), []

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        self.asked.append(index)
        return self.data[index]


def test_no_more_batches_are_loaded_than_training_gets():
    class Data(PlainData):
        def train_dataloader(self):
            return DataLoader(samples, batch_size=6)

    samples = Seen()
    fitted(PlasticityCallback(DASH(), AtNewData(skip_first=False)), data=Data(), max_epochs=1, limit_train_batches=2)
    assert set(samples.asked) == set(range(12))


class Skips(PlainModule):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return None if batch_idx == 0 else loss


class OtherInEvaluation(PlainModule):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return loss if self.training else {"boxes": 1}["losses"]


class NoLayers(PlainModule):
    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(x @ self.net[0].weight[:3].T, y)


class DerivesByItself(PlainModule):
    def training_step(self, batch, batch_idx):
        x, y = batch
        x = x.requires_grad_()
        (slope,) = torch.autograd.grad(self.net(x).square().sum(), x, create_graph=True)
        return nn.functional.cross_entropy(self.net(x), y) + slope.square().mean()


class ByKeyword(PlainModule):
    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self.net[-1](input=self.net[:-1](x)), y)


@pytest.mark.filterwarnings("ignore:`training_step` returned `None`")
@pytest.mark.filterwarnings("ignore:.*lambda_max.* is not logged")
@pytest.mark.parametrize("kind", [Skips, OtherInEvaluation, NoLayers, DerivesByItself, ByKeyword])
@pytest.mark.parametrize("looking", LOOKING)
def test_what_cannot_be_measured_is_trained_as_without(looking, kind):
    with_and_without(looking, module=kind)


@pytest.mark.filterwarnings("ignore:Total length of .* across ranks is zero")
def test_an_epoch_without_batches_does_not_end_training():
    class Empty(GrowingData):
        def train_dataloader(self):
            return DataLoader(dataset(size=0 if self.chunk else 12), batch_size=6)

    fitted(FIRECallback(), PlasticityMonitor(data_every_n_steps=1), data=Empty((1, 1)), max_epochs=2)


def test_passes_of_another_model_and_in_another_thread_count_while_one_is_measured():
    x = torch.ones(4, 6)
    models = [nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)) for _ in range(2)]
    measured, other = (
        ContinualBackprop().attach(model, Loop(forward=lambda model=model: model(x))) for model in models
    )
    with without_side_effects(models[0]):
        models[0](x)
        models[1](x)
        assert [each.statistics[0].count for each in (measured, other)] == [0, 4]
        thread = threading.Thread(target=models[0], args=(x,))
        thread.start()
        thread.join()
    assert [each.statistics[0].count for each in (measured, other)] == [4, 4]
    models[0](x)
    assert measured.statistics[0].count == 8
