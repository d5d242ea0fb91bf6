"""What every method does in real fits: it begins with its chunk, continues after a resume, and rejects bad input."""

import typing
from dataclasses import fields, replace
from functools import cache

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from methods_table import ALL, EVENTS, KEYS, MADE, STEPS, callback_of
from small_training import GrowingData, PlainModule, assert_same_weights, fitted, snapshots_of
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.utils.data import DataLoader
from torchmetrics.classification import MulticlassAccuracy

from lightning_fire import (
    DASH,
    METHODS,
    ContinualBackprop,
    FeatureRank,
    HiddenUnits,
    IsometryDecay,
    L2Init,
    Parseval,
    PlasticityCallback,
    ReDo,
    ShrinkAndPerturb,
    SpectralRegularization,
    WeightProjection,
    Weights,
)


def arguments(name):
    return [field.name for field in fields(MADE[name])]


SELECTING = {
    name: typing.get_args(typing.get_type_hints(type(method))["where"])[0]
    for name, method in MADE.items()
    if "where" in arguments(name)
}
"""Kind of the selection of each method that has one."""
ON_UNITS = [name for name, kind in SELECTING.items() if kind is HiddenUnits]


def saving(folder):
    return ModelCheckpoint(folder, "{epoch}", save_top_k=-1, save_on_train_epoch_end=True)


@cache
def vanilla(epochs: int = 6) -> PlainModule:
    """The module after a training without a method."""
    return fitted(max_epochs=epochs)


def differ(one: nn.Module, other: nn.Module) -> bool:
    """Whether they have other weights, or one of them has more."""
    states = one.state_dict(), other.state_dict()
    return states[0].keys() != states[1].keys() or any(
        not torch.equal(states[0][key], states[1][key]) for key in states[0]
    )


def test_the_table_has_every_method():
    assert {type(method) for method in MADE.values()} == set(METHODS)
    assert len(ON_UNITS) == 7 and len(SELECTING) == len(MADE) - 2


@pytest.mark.parametrize("name", ALL)
def test_a_resumed_run_equals_the_uninterrupted_one_bit_for_bit(tmp_path, name):
    """From before and after an event; whatever the method keeps is in the checkpoint."""
    callback = callback_of(name)
    whole = fitted(callback, saving(tmp_path))
    assert differ(whole, vanilla())
    for epoch in (1, 3):
        path, resumed = tmp_path / f"epoch={epoch}.ckpt", callback_of(name)
        assert_same_weights(fitted(resumed, seed=99, ckpt_path=path), whole)
        torch.testing.assert_close(resumed._state, callback._state, rtol=0, atol=0)
        assert resumed.state_key in torch.load(path, weights_only=True)["callbacks"]


@pytest.mark.parametrize("name", MADE)
def test_it_begins_with_its_chunk(tmp_path, name):
    """Chunk 1 is that of epochs 2 and 3."""

    def build():
        return PlasticityCallback(MADE[name], start_chunk=1)

    assert_same_weights(fitted(build(), max_epochs=2), vanilla(2))
    whole = fitted(build(), saving(tmp_path))
    assert differ(whole, vanilla())
    assert_same_weights(fitted(build(), seed=99, ckpt_path=tmp_path / "epoch=2.ckpt"), whole)


@pytest.mark.parametrize("name", SELECTING)
def test_a_selection_that_matches_nothing_is_an_error_before_training(name):
    module, method = PlainModule(), replace(MADE[name], where=SELECTING[name](include=["layer99"]))
    before = {key: value.clone() for key, value in module.state_dict().items()}
    with pytest.raises(ValueError, match=r"`include` has 'layer99', which matches no .*; there are: net\.0"):
        fitted(PlasticityCallback(method), module=module)
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())


@pytest.mark.parametrize("name", [*SELECTING, "weight_projection of all"])
def test_it_shows_its_selection(name):
    method, name = (MADE | {"weight_projection of all": WeightProjection(Weights("cnn"))})[name], name.partition(" ")[0]
    if method.selection is None and not name.startswith("full_reset"):
        method = replace(method, where=Weights())  # else it acts on every weight, without a table
    text = PlasticityCallback(method).show_selection(PlainModule())
    assert text.startswith(type(MADE[name]).__name__)
    shown = "finds its units when training starts" if name in ON_UNITS else "net.3.weight"
    assert ("acts on every parameter and buffer, 11 tensors" if name.startswith("full_reset") else shown) in text


@pytest.mark.parametrize("name", [*ON_UNITS, "dash", "feature_rank"])
def test_manual_optimization_requires_loss_on(name):
    class Manual(PlainModule):
        """Its training_step takes steps."""

        def __init__(self):
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch, batch_idx):
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(super().training_step(batch, batch_idx))
            optimizer.step()

    class WithLoss(Manual):
        def loss_on(self, batch):
            return PlainModule.training_step(self, batch, 0)

    asked = r"say how to run the module on a batch, by a method loss_on\(batch\) of the module"
    with pytest.raises(MisconfigurationException, match=asked):
        fitted(callback_of(name), module=(module := Manual()))
    assert module.global_step == 0
    torch.manual_seed(0)
    module = fitted(callback_of(name), module=WithLoss())
    assert_same_weights(module, fitted(callback_of(name)))


@pytest.mark.parametrize("name", MADE)
def test_it_is_logged_when_it_acts(tmp_path, name):
    """New data comes before steps 4 and 12; a method at every step logs at the end of an epoch from its chunk on."""
    callback = snapshots_of(PlasticityCallback)(MADE[name], start_chunk=int(name in STEPS))
    fitted(callback, folder=tmp_path)
    log = EventAccumulator(str(tmp_path)).Reload()
    tags = [tag for tag in log.Tags()["scalars"] if tag.startswith(f"{MADE[name].name}/")]
    if name in STEPS:
        assert all(len(log.Scalars(tag)) == 4 for tag in tags)
        if name in ON_UNITS:
            assert log.Scalars(f"{MADE[name].name}/units")[-1].value == callback._state["num_reset"] > 0
        assert bool(tags) == (KEYS[type(MADE[name])] is not None)
    else:
        steps = [2, 4, 8, 12, 18] if name.startswith("redo") else [4, 12]
        assert [event.step for event in log.Scalars(f"{MADE[name].name}/event")] == steps
        assert [event.value for event in log.Scalars(f"{MADE[name].name}/event")] == list(range(1, len(steps) + 1))
        if EVENTS[name].measures_curvature:  # it changes weights
            for event, (before, after, _) in zip(log.Scalars(f"{MADE[name].name}/sfe"), callback.seen, strict=True):
                moved = [before[key] - after[key] for key in ("net.0.weight", "net.3.weight", "net.5.weight")]
                assert event.value == pytest.approx(sum(m.square().sum() for m in moved).item(), rel=1e-4)


class Draws(PlainModule):
    """With dropout, a metric and logs: everything that a look at the data could change."""

    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.5)
        self.accuracy = MulticlassAccuracy(3)

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self.net(self.dropout(x))
        self.accuracy(logits, y)
        self.log("accuracy", self.accuracy, on_step=True, on_epoch=True)
        return {"loss": nn.functional.cross_entropy(logits, y)}


class Shuffled(GrowingData):
    """Draws its order from the global random state, in worker-less loaders as most have them."""

    def train_dataloader(self):
        return DataLoader(super().train_dataloader().dataset, batch_size=6, shuffle=True)


def trained_on_draws(folder, *callbacks):
    torch.manual_seed(0)
    module = fitted(*callbacks, module=Draws(), data=Shuffled(), folder=folder)
    log = EventAccumulator(str(folder)).Reload()
    return module, [
        (event.step, event.value) for tag in ("accuracy_step", "accuracy_epoch") for event in log.Scalars(tag)
    ]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return trained_on_draws(tmp_path_factory.mktemp("undisturbed"))


SCORES = ("activation", "pre_activation", "gradient")
IDLE = {  # measure and draw, and change nothing
    "shrink_and_perturb": ShrinkAndPerturb(strength=0.0, fresh_seed=0, optimizer_state="keep"),
    "dash": DASH(minimum=1.0, optimizer_state="keep"),
    **{
        f"redo_{score}": ReDo(0.0, where=HiddenUnits(include=["net.0"]), score=score) for score in SCORES
    },  # none is dead
    "continual_backprop": ContinualBackprop(replacement_rate=0.0),
    **{kind.name: kind(0.0) for kind in (L2Init, Parseval, SpectralRegularization, IsometryDecay)},
}


@pytest.mark.filterwarnings("ignore:.* has changed no weight")
@pytest.mark.parametrize("name", [*IDLE, "feature_rank"])
def test_a_method_that_changes_nothing_leaves_no_trace(tmp_path, name, undisturbed):
    """Weights, buffers, order of batches, dropout, metrics and logs of the whole run are as without it."""
    callback = FeatureRank(0.0, every_n_batches=2) if name == "feature_rank" else PlasticityCallback(IDLE[name])
    module, logged = trained_on_draws(tmp_path, callback)
    assert_same_weights(module, undisturbed[0])
    assert logged == undisturbed[1]
