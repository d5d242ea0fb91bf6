"""`FullReset`, `ShrinkAndPerturb` and `PlasticityMonitor` through real fits."""

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import LearningRateFinder, ModelCheckpoint
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from small_training import (
    PlainData,
    PlainModule,
    fitted,
    initial_state,
    snapshots_of,
    state_of,
    trainer,
)
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from lightning_fire import (
    AtEpochs,
    AtNewData,
    FullReset,
    Parameters,
    PlasticityCallback,
    PlasticityMonitor,
    ShrinkAndPerturb,
    Weights,
)
from lightning_fire.functional import dfi, fire

Snapshots = snapshots_of(PlasticityCallback)


def test_parameters_and_buffers_return_to_their_initial_values():
    callback = Snapshots(FullReset())
    fitted(callback)
    for name, tensor in initial_state().items():
        assert torch.equal(callback.seen[-1][1][name], tensor), name
    assert callback.optimizer_state == {}


def test_isometries_of_the_initial_values_do_not_depend_on_the_training():
    callback = Snapshots(FullReset(target="isometry"))
    fitted(callback)
    for name, tensor in initial_state().items():
        expected = fire(tensor) if tensor.ndim > 1 else tensor
        assert torch.equal(callback.seen[-1][1][name], expected), name


def test_fresh_draws_are_new_reproducible_and_leave_the_global_random_state():
    draws = []
    for _ in range(2):
        callback = Snapshots(FullReset(fresh_seed=3), AtEpochs([1]))
        fitted(callback, max_epochs=2)
        draws.append(callback.seen[-1][1])
    assert all(torch.equal(draws[0][name], draws[1][name]) for name in draws[0])
    assert not torch.equal(draws[0]["net.0.weight"], initial_state()["net.0.weight"])
    assert draws[0]["net.0.weight"].abs().max() <= 6**-0.5  # PyTorch's uniform range for 6 inputs
    assert torch.equal(draws[0]["net.1.running_mean"], torch.zeros(8))


class Late(PlainModule):
    """Makes a layer in the hook that large models use."""

    def configure_model(self):
        if not hasattr(self, "late"):
            self.late = nn.Linear(3, 3)

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self.late(self.net(batch[0])), batch[1])


class LateInSetup(Late):
    """Makes it in `setup`."""

    configure_model = pl.LightningModule.configure_model

    def setup(self, stage):
        Late.configure_model(self)


class Start(Callback):
    """Keeps the state before the first step."""

    def on_train_start(self, trainer, pl_module):
        self.state = state_of(pl_module)


class Lazy(Late):
    """Finds the size of a layer there."""

    def __init__(self):
        super().__init__()
        self.late = nn.LazyLinear(3)

    def configure_model(self):
        self.late(torch.zeros(2, 3))


@pytest.mark.parametrize("kind", [Late, LateInSetup, Lazy])
def test_layers_that_are_made_when_training_begins_are_reset_too(kind):
    callback, start = Snapshots(FullReset()), Start()
    fitted(callback, start, module=kind())
    assert "late.weight" in start.state
    for name, tensor in start.state.items():
        assert torch.equal(callback.seen[-1][1][name], tensor), name


def test_late_layers_are_reset_after_a_search_of_lightning(tmp_path):
    callback, search = Snapshots(FullReset()), LearningRateFinder(num_training_steps=3, update_attr=False)
    start = Start()
    fitted(search, callback, start, module=Late(), default_root_dir=tmp_path)
    assert torch.equal(callback.seen[-1][1]["late.weight"], start.state["late.weight"])


def test_late_layers_and_a_checkpoint_of_a_run_without_full_reset(tmp_path):
    fitted(ModelCheckpoint(tmp_path, "{epoch}", save_on_train_epoch_end=True), module=Late(), max_epochs=2)
    with pytest.raises(MisconfigurationException, match=r"initial values of late.bias, late.weight are not known"):
        fitted(PlasticityCallback(FullReset()), module=Late(), ckpt_path=tmp_path / "epoch=1.ckpt")


def test_initial_values_belong_to_the_first_fit_of_a_module():
    callback, module = Snapshots(FullReset(), AtEpochs([1])), PlainModule()
    start = state_of(module)
    for _ in range(2):
        trainer(callback, max_epochs=2).fit(module, datamodule=PlainData())
        for name, tensor in start.items():
            assert torch.equal(callback.seen[-1][1][name], tensor), name


def test_another_module_is_taken_for_the_same_training_with_a_warning():
    """As where the best checkpoint of a chunk is loaded into a module of its own."""
    callback, first = Snapshots(FullReset(), AtEpochs([1])), PlainModule()
    start = state_of(first)
    trainer(callback, max_epochs=2).fit(first, datamodule=PlainData())
    with pytest.warns(UserWarning, match="Snapshots was used in a fit of another module, .* make a new callback"):
        trainer(callback, max_epochs=2).fit(PlainModule(), datamodule=PlainData())
    for name, tensor in start.items():
        assert torch.equal(callback.seen[-1][1][name], tensor), name


@pytest.mark.filterwarnings("ignore:.*was used in a fit of another module")
def test_a_module_with_other_layers_is_not_the_same_training():
    callback = PlasticityCallback(FullReset())
    fitted(callback)
    with pytest.raises(
        MisconfigurationException, match=r"late.bias, late.weight are not known: .* Make a new callback"
    ):
        fitted(callback, module=Late())


@pytest.mark.filterwarnings("ignore:.*does not know the data of earlier epochs")
@pytest.mark.parametrize("before", [[], [FullReset(fresh_seed=0)]], ids=["none", "fresh"])
def test_a_checkpoint_that_lacks_initial_values_continues_with_those_of_the_constructed_module(tmp_path, before):
    earlier, save = [Snapshots(method) for method in before], ModelCheckpoint(tmp_path, save_on_train_epoch_end=True)
    fitted(*earlier, save, max_epochs=3, seed=5)
    callback = Snapshots(FullReset())
    assert all(callback.state_key == fresh.state_key for fresh in earlier)
    fitted(callback, ckpt_path=save.best_model_path)
    for name, tensor in initial_state().items():
        assert torch.equal(callback.seen[-1][1][name], tensor), name


@pytest.mark.parametrize("method", [FullReset, ShrinkAndPerturb])
def test_warns_of_an_event_that_changes_nothing(method, caplog):
    """As in a process that starts from loaded weights: these are its initial values."""
    when = AtNewData(skip_first=False)
    with pytest.warns(UserWarning, match=rf"{method.__name__} has changed no weight: .* use fresh_seed=0"):
        fitted(PlasticityCallback(method(), when), data=PlainData(), max_epochs=1)
    assert " acted " not in caplog.text
    nothing = PlasticityCallback(ShrinkAndPerturb(strength=0), when)
    with pytest.warns(UserWarning, match="ShrinkAndPerturb has changed no weight: with strength=0 it moves none"):
        fitted(nothing, data=PlainData(), max_epochs=1)
    fitted(PlasticityCallback(method(fresh_seed=0), when), data=PlainData(), max_epochs=1)  # warnings are errors
    assert f"{method.__name__} acted at epoch 0, step 0" in caplog.text


def test_monitor_logs_dfi_every_epoch_and_the_chunk(tmp_path):
    module = fitted(PlasticityMonitor(where=Weights(preset="cnn"), every_n_epochs=2), folder=tmp_path)
    log = EventAccumulator(str(tmp_path)).Reload()
    assert [event.value for event in log.Scalars("plasticity/chunk")] == [0, 0, 1, 1, 2, 2]
    values = [event.value for event in log.Scalars("plasticity.raw/dfi")]
    assert len(values) == 3
    last = torch.stack([dfi(module.net[i].weight) for i in (0, 3, 5)])
    assert values[-1] == pytest.approx(last.mean().item(), rel=1e-4)
    assert log.Scalars("plasticity.layers/dfi/net.3.weight")[-1].value == pytest.approx(last[1].item(), rel=1e-4)


def test_a_checkpoint_can_watch_the_monitor(tmp_path):
    save = ModelCheckpoint(tmp_path, "{epoch}", monitor="plasticity/dfi_normalized", mode="min", save_top_k=1)
    fitted(PlasticityMonitor(), save)
    assert save.best_model_score == min(save.best_k_models.values())
    assert len(list(tmp_path.glob("*.ckpt"))) == 1


def test_only_what_moves_is_measured(tmp_path):
    callback = Snapshots(ShrinkAndPerturb(where=Parameters(include=[r"net\.0"])))
    fitted(callback, folder=tmp_path)
    log = EventAccumulator(str(tmp_path)).Reload()
    old, new = (state["net.0.weight"] for state in callback.seen[0][:2])
    expected = ((old - new).square().sum() / old.square().sum()).item()
    assert log.Scalars("shrink_and_perturb/sfe_normalized")[0].value == pytest.approx(expected, rel=1e-4)
    biases = ShrinkAndPerturb(where=Parameters(include=["bias"]))
    fitted(PlasticityCallback(biases), max_epochs=3)  # nothing to measure: no warning of no change
