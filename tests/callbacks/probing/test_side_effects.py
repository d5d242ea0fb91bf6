"""Measurements on upcoming batches leave the module, the data and the random generators unchanged."""

import itertools
import random
import threading

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback
from small_training import GrowingData, PlainData, PlainModule, assert_same_weights, dataset, fitted, trainer
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler, Sampler
from torchmetrics import MeanMetric, MinMaxMetric
from torchmetrics.classification import MulticlassAccuracy

from lightning_fire import DASH, AtNewData, FIRECallback, Log, PlasticityCallback, PlasticityMonitor
from lightning_fire.callbacks.probing.side_effects import without_side_effects
from lightning_fire.methods import ContinualBackprop, Loop

LOOKING = {
    "fire": lambda: FIRECallback(AtNewData(skip_first=False)),
    "monitor": lambda: PlasticityMonitor(data_every_n_steps=1, num_batches=2, log=Log(curvature=True)),
}


class Average:
    """A user's own exponential moving average."""

    def __init__(self):
        self.total = self.count = 0.0
        self.values = {"all": []}


class Collecting(PlainModule):
    """Changes attributes of all kinds in its training step, and uses some of them."""

    def __init__(self):
        super().__init__()
        self.losses, self.seen, self.by_key = [], set(), {"loss": []}
        self.average, self.metrics = Average(), {"accuracy": MulticlassAccuracy(3)}
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
        self.average.total, self.average.count = self.average.total + loss.item(), self.average.count + 1
        self.average.values["all"].append(loss.item())
        self.metrics["accuracy"].update(logits, y)
        self.wrapped.update(loss.detach())
        self.wrapped.compute()
        return loss


@pytest.mark.parametrize("looking", LOOKING)
def test_attributes_of_a_training_step_are_as_without_measurements(looking):
    quiet = [FIRECallback(AtNewData(skip_first=False), log=Log(curvature=False))] if looking == "fire" else []
    results = []
    for callbacks in ([LOOKING[looking]()], quiet):
        torch.manual_seed(0)
        results.append(fitted(*callbacks, module=Collecting()))
    one, other = results
    assert_same_weights(one, other)
    assert len(one.losses) == len(other.losses) == 6
    assert one.count == other.count == 24
    for name in ("seen", "by_key"):
        assert getattr(one, name) == getattr(other, name)
    assert vars(one.average) == vars(other.average)
    assert one.metrics["accuracy"].compute() == other.metrics["accuracy"].compute()
    assert one.wrapped.compute() == other.wrapped.compute()
    assert torch.equal(one.hidden, other.hidden)


def drawn_forever():
    draw = random.Random(1)
    while True:
        yield draw.random()


STATES = {  # of an attribute `drawn_from`, and how a training step changes and uses it
    "numpy": (lambda: np.random.default_rng(1), lambda state: state.normal()),
    "bit generator": (lambda: np.random.PCG64(1), lambda state: state.random_raw() / 2**64),
    "old numpy": (lambda: np.random.RandomState(1), lambda state: state.normal()),
    "python": (lambda: random.Random(1), lambda state: state.random()),
    "torch": (lambda: torch.Generator().manual_seed(1), lambda state: torch.rand((), generator=state).item()),
    "several": (lambda: (np.random.default_rng(1), 0), lambda state: state[0].normal()),
    "array": (lambda: np.zeros(2), lambda state: np.add(state, 0.1, out=state)[0]),
    "cycle": (lambda: itertools.cycle([0.1, 0.3, 0.7, 0.2, 0.9]), next),
    "generator function": (drawn_forever, next),
    "iterators": (lambda: {"a": [iter(np.linspace(0, 1, 99))]}, lambda state: next(state["a"][0])),
    "loader": (lambda: iter(DataLoader(torch.linspace(0, 1, 99), 1)), lambda state: next(state).item()),
}
HOLDERS = {
    "module": lambda module: module,
    "callback": lambda module: next(each for each in module.trainer.callbacks if type(each) is Callback),
    "trainer": lambda module: module.trainer,
}


class Stateful(PlainModule):
    """Draws from a state of its own, or of a callback or the Trainer, in training and validation."""

    def __init__(self, make, draw, holder):
        super().__init__()
        self.make, self.draw, self.holder = make, draw, HOLDERS[holder]

    def on_fit_start(self):
        self.holder(self).drawn_from = self.make()

    def training_step(self, batch, batch_idx):
        noise = self.draw(self.holder(self).drawn_from)
        return super().training_step((batch[0] + noise, batch[1]), batch_idx)

    def validation_step(self, batch, batch_idx):
        self.draw(self.holder(self).drawn_from)


class Rated(PlainModule):
    """Changes the learning rate in its training step."""

    def __init__(self, way):
        super().__init__()
        self.way = way

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        kind = torch.optim.lr_scheduler
        self.own = kind.SequentialLR(optimizer, [kind.ExponentialLR(optimizer, 0.9) for _ in range(2)], [3])
        return [optimizer], [] if self.way == "own" else [self.own]

    def training_step(self, batch, batch_idx):
        if self.way == "group":
            self.optimizers().param_groups[0]["lr"] *= 0.97
        else:
            (self.own if self.way == "own" else self.lr_schedulers()).step()
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch, batch_idx):
        pass


class Validated(PlainData):
    def val_dataloader(self):
        return self.train_dataloader()


def same_with_and_without_measurements(looking, make):
    """Train twice; return the modules and Trainers."""
    runs = []
    log = Log(curvature=looking == "fire", validation_batches=2 if looking == "fire" else 0)
    for measures in (True, False):
        event = FIRECallback(AtNewData(skip_first=False), log=log if measures else Log(curvature=False))
        monitor = [LOOKING["monitor"]()] if looking == "monitor" and measures else []
        torch.manual_seed(0)
        module, this = make(), trainer(event, *monitor, Callback(), max_epochs=2, num_sanity_val_steps=0)
        this.fit(module, datamodule=Validated())
        runs.append((module, this))
    assert_same_weights(runs[0][0], runs[1][0])
    return runs


@pytest.mark.parametrize(
    ("state", "holder"),
    [*itertools.product(STATES, ["module"]), *itertools.product(["numpy", "array", "cycle"], ["callback", "trainer"])],
)
@pytest.mark.parametrize("looking", LOOKING)
def test_generators_arrays_and_iterators_are_as_without_measurements(looking, state, holder):
    runs = same_with_and_without_measurements(looking, lambda: Stateful(*STATES[state], holder))
    if state == "array":
        assert [HOLDERS[holder](module).drawn_from[0] for module, _ in runs] == [pytest.approx(1.6)] * 2


@pytest.mark.filterwarnings("ignore:The epoch parameter in `scheduler.step")
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize("way", ["group", "own", "of the Trainer"])
@pytest.mark.parametrize("looking", LOOKING)
def test_learning_rates_are_as_without_measurements(looking, way):
    (one, this), (other, that) = same_with_and_without_measurements(looking, lambda: Rated(way))
    assert this.optimizers[0].param_groups[0]["lr"] == that.optimizers[0].param_groups[0]["lr"]
    assert one.own.last_epoch == other.own.last_epoch
    assert [each.last_epoch for each in one.own._schedulers] == [each.last_epoch for each in other.own._schedulers]


def test_an_iterator_is_itself_again_once_its_items_are_drawn():
    """Also after measurements within others."""
    module = PlainModule()
    module.letters = source = iter("abcdef")
    for _ in range(2):
        with without_side_effects(module):
            assert next(module.letters) == "a"
            with without_side_effects(module):
                assert [next(module.letters), next(module.letters)] == ["b", "c"]
            assert next(module.letters) == "b"
    assert [next(module.letters) for _ in range(3)] == ["a", "b", "c"]
    with without_side_effects(module):
        pass
    assert module.letters is source
    assert list(module.letters) == ["d", "e", "f"]


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
    quiet = [FIRECallback(AtNewData(skip_first=False), log=Log(curvature=False))] if looking == "fire" else []
    runs = [fitted(*callbacks, data=RandomData(kind), max_epochs=2) for callbacks in ([LOOKING[looking]()], quiet)]
    assert_same_weights(*runs)


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
    quiet = [FIRECallback(AtNewData(skip_first=False), log=Log(curvature=False))] if looking == "fire" else []
    runs = []
    for callbacks in ([LOOKING[looking]()], quiet):
        torch.manual_seed(0)
        runs.append(fitted(*callbacks, module=kind()))
    assert_same_weights(*runs)


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
