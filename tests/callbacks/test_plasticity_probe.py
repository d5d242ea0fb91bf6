"""`PlasticityProbe`: what it logs equals the training of a real copy; schedule; no effect on the training."""

import copy
from functools import partial
from itertools import islice

import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from pretended_fit import BATCHES, waits_of_fit
from small_training import (
    GrowingData,
    PlainData,
    PlainModule,
    assert_same_weights,
    dataset,
    fitted,
    initial_state,
    resumed_from,
    trainer,
)
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.utils.data import DataLoader

from lightning_fire import FullReset, PlasticityCallback, PlasticityMonitor, PlasticityProbe
from lightning_fire.callbacks.probing.learning import learning_curve

STEPS = 7
ADAM = partial(torch.optim.Adam, lr=0.02, weight_decay=0.1)


def task(batches: int = 9) -> DataLoader:
    return DataLoader(dataset(size=6 * batches, seed=5), batch_size=6)


def first():
    yield from islice(task(), STEPS)  # a loader draws a seed when its first batch is asked for


class Noisy(PlainModule):
    """With dropout, a tied weight, a frozen layer and a parameter that is not used."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(6, 8),
            nn.BatchNorm1d(8),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(8, 8),
            nn.Linear(8, 8),
            nn.Linear(8, 3),
        )
        self.net[5].weight = self.net[4].weight
        self.net[4].bias.requires_grad_(False)
        self.unused = nn.Parameter(torch.ones(2))


def loss_of(module, batch):
    return nn.functional.cross_entropy(module.net(batch[0]), batch[1])


def slow_curve(module, batches) -> list[float]:
    """Train a real copy."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module, losses = copy.deepcopy(module), []
        optimizer = ADAM([p for p in module.parameters() if p.requires_grad])
        for batch in batches:
            loss = loss_of(module, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


@pytest.mark.parametrize("mode", [True, False])
def test_a_learning_curve_is_that_of_a_real_copy(mode):
    torch.manual_seed(1)
    module = Noisy().train(mode)
    module.net[1].eval()
    before, state = copy.deepcopy(module.state_dict()), torch.get_rng_state()
    losses = learning_curve(module, task(), ADAM, loss_of)
    assert losses == pytest.approx(slow_curve(module, task()), abs=1e-6)
    assert len(set(losses)) == 9
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in module.parameters())
    assert module.training == mode and not module.net[1].training


def test_a_learning_curve_needs_trainable_parameters():
    with pytest.raises(ValueError, match="the module has no trainable parameters"):
        learning_curve(nn.Linear(1, 1).requires_grad_(False), [], ADAM, loss_of)
    assert learning_curve(nn.Linear(1, 1), [], ADAM, loss_of) == []


def test_a_learning_curve_of_a_module_in_half_precision_is_in_full():
    torch.manual_seed(1)
    module = PlainModule().bfloat16()
    full = copy.deepcopy(module).float()
    halved = [(x.bfloat16(), y) for x, y in task()]
    losses = learning_curve(module, halved, ADAM, loss_of)
    assert losses == pytest.approx(slow_curve(full, [(x.float(), y) for x, y in halved]), abs=1e-6)


class Keep(Callback):
    """Keeps what a real copy learns at the end of each epoch."""

    def __init__(self):
        self.losses = []

    def on_train_epoch_end(self, trainer, pl_module):
        self.losses.append(slow_curve(like(pl_module), first()))


def like(module):
    """Return a new module with the state of one in a fit, which holds its Trainer, and leave the random states."""
    with torch.random.fork_rng():
        new = Noisy()
    new.load_state_dict(module.state_dict())
    return new


def scalars(folder) -> dict[str, list[tuple[int, float]]]:
    log = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    log.Reload()
    return {
        key: [(event.step, event.value) for event in log.Scalars(key)]
        for key in log.Tags()["scalars"]
        if key.startswith("probe/")
    }


def probe(**options) -> PlasticityProbe:
    return PlasticityProbe(**{"task": task(), "steps": STEPS, "optimizer": ADAM, "at_new_data": True, **options})


def noisy() -> Noisy:
    torch.manual_seed(0)
    return Noisy()


def test_what_it_logs_is_what_a_real_copy_learns(tmp_path):
    keep, new = Keep(), slow_curve(noisy(), first())
    fitted(probe(), keep, module=noisy(), folder=tmp_path)
    logged, steps = scalars(tmp_path), [1, 3, 7, 11, 17, 23]
    means = [sum(losses) / STEPS for losses in [new, *keep.losses]]
    assert logged["probe/loss"] == [(s, pytest.approx(m, abs=1e-6)) for s, m in zip([0, *steps], means, strict=True)]
    assert [value for _, value in logged["probe/last_loss"]] == pytest.approx([c[-1] for c in [new, *keep.losses]])
    assert logged["probe/loss_at_new_data"] == [(4, pytest.approx(means[2])), (12, pytest.approx(means[4]))]


def test_every_n_epochs_and_not_at_new_data(tmp_path):
    fitted(probe(every_n_epochs=2, at_new_data=False), folder=tmp_path)
    assert {key: [step for step, _ in of_key] for key, of_key in scalars(tmp_path).items()} == {
        "probe/loss": [0, 3, 11, 23],
        "probe/last_loss": [0, 3, 11, 23],
    }


def test_at_new_data_it_comes_after_the_events_of_callbacks_behind_it(tmp_path):
    fitted(probe(), PlasticityCallback(FullReset()), folder=tmp_path)
    module = PlainModule()
    module.load_state_dict(initial_state())
    new = sum(slow_curve(module, first())) / STEPS
    logged = scalars(tmp_path)
    assert [value for _, value in logged["probe/loss_at_new_data"]] == pytest.approx([new, new])
    assert logged["probe/loss"][0][1] == pytest.approx(new)
    assert logged["probe/loss"][-1][1] != pytest.approx(new, abs=1e-5)


class Random(PlainModule):
    """Draws from all generators, counts its steps, and clips, with dropout."""

    def __init__(self):
        super().__init__()
        self.net.insert(3, nn.Dropout(0.3))
        self.count, self.seen = 0, []

    def training_step(self, batch, batch_idx):
        self.count += 1
        self.seen.append(float(batch[0].sum()))
        loss = loss_of(self, batch)
        self.log("loss", loss)
        return loss + 0 * torch.rand(())


class Shuffled(GrowingData):
    def train_dataloader(self):
        return DataLoader(dataset(size=12 * (self.chunk + 1)), batch_size=6, shuffle=True)


def random() -> Random:
    torch.manual_seed(0)
    return Random()


@pytest.mark.parametrize("options", [{}, {"accumulate_grad_batches": 2}, {"gradient_clip_val": 0.1}], ids=str)
def test_a_training_with_it_is_bit_equal_to_one_without(options):
    modules = []
    for callbacks in ([], [probe()]):
        module = random()
        monitor = PlasticityMonitor(data_every_n_steps=2)
        fitted(*callbacks, monitor, PlasticityCallback(FullReset()), module=module, data=Shuffled(), **options)
        modules.append((module, torch.rand(3)))
    (without, drawn), (with_it, drawn_too) = modules
    assert_same_weights(without, with_it)
    assert torch.equal(drawn, drawn_too)
    assert (without.count, without.seen) == (with_it.count, with_it.seen)
    assert without.trainer.callback_metrics["loss"] == with_it.trainer.callback_metrics["loss"]


def test_a_resumed_training_logs_what_a_whole_one_does(tmp_path):
    every = ModelCheckpoint(tmp_path / "saved", every_n_epochs=1, save_top_k=-1, filename="{epoch}")
    whole = fitted(probe(), every, folder=tmp_path / "whole")
    for epoch, done in {1: 4, 2: 8}.items():  # the next one begins on new data, or not
        path, resumed = tmp_path / "saved" / f"epoch={epoch}.ckpt", PlainModule()
        trainer(probe(), folder=tmp_path / f"{epoch}").fit(resumed, datamodule=GrowingData(), **resumed_from(path))
        assert_same_weights(whole, resumed)
        rest = {key: [at for at in of if at[0] >= done] for key, of in scalars(tmp_path / "whole").items()}
        assert scalars(tmp_path / f"{epoch}") == rest


class WithTask(GrowingData):
    def probe_dataloader(self):
        return task()


def test_the_data_module_may_have_the_task(tmp_path):
    fitted(probe(), folder=tmp_path / "own")
    fitted(probe(task=None), data=WithTask(), folder=tmp_path / "data")
    assert scalars(tmp_path / "own") == scalars(tmp_path / "data")


class Manual(PlainModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False


@pytest.mark.parametrize(
    "error, message, options, module",
    [
        (ValueError, r"needs a held-out task: its `task`, or a DataModule with probe_dataloader", {"task": None}, None),
        (ValueError, r"the held-out task has 9 batches, fewer than `steps`=10", {"steps": 10}, None),
        (ValueError, "use a DataLoader with shuffle=False", {"task": DataLoader(dataset(), shuffle=True)}, None),
        (MisconfigurationException, "cannot train a copy: the training_step of manual optimization", {}, Manual),
    ],
)
def test_errors_when_training_starts(error, message, options, module):
    with pytest.raises(error, match=message):
        fitted(probe(**options), data=PlainData(), module=module and module())


def test_errors_of_arguments():
    for options in ({"steps": 0}, {"every_n_epochs": 0}):
        with pytest.raises(ValueError, match=rf"`{next(iter(options))}` must be at least 1, got 0"):
            probe(**options)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_probe_waits_for_the_device_once():
    waits = waits_of_fit(probe(every_n_epochs=9, optimizer=partial(torch.optim.SGD, lr=0.1)))
    assert waits[0] <= 2 and waits[1:] == [0] * (2 * BATCHES - 1)
