"""`HareAndTortoise` through real fits over growing data."""

import lightning.pytorch as pl
import pytest
import torch
from small_training import (
    GrowingData,
    PlainModule,
    assert_same_weights,
    dataset,
    fitted,
    snapshots_of,
    state_of,
    trainer,
)
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tolerances import assert_near
from torch.utils.data import DataLoader

from lightning_fire import AtEpochs, EveryNEpochs, HareAndTortoise, methods

Snapshots = snapshots_of(HareAndTortoise)


class Slow(pl.Callback):
    """The average of all states, step by step, in float64; the state itself after each event of a callback."""

    def __init__(self, momentum, before):
        self.momentum, self.average = momentum, {name: value.double() for name, value in before.items()}
        self.at_epochs = []

    def on_train_batch_end(self, trainer, pl_module, *args):
        for name, value in pl_module.state_dict().items():
            self.average[name] = self.momentum * self.average[name] + (1 - self.momentum) * value.double()

    def on_train_epoch_start(self, trainer, pl_module):
        self.at_epochs.append({name: value.clone() for name, value in self.average.items()})


@pytest.mark.parametrize("momentum", [0.3, 0.7, 0.99])
def test_the_module_returns_to_the_average_of_all_steps_and_nothing_else_changes(momentum):
    callback = Snapshots(AtEpochs([2, 3]), momentum=momentum)
    torch.manual_seed(0)
    module = PlainModule()
    slow = Slow(momentum, state_of(module))
    fitted(callback, slow, module=module)
    assert len(callback.seen) == 2
    for (before, after, _), epoch in zip(callback.seen, (2, 3), strict=True):
        for name, value in after.items():
            if value.is_floating_point():
                assert_near(value, slow.at_epochs[epoch][name].float())
            else:
                assert torch.equal(value, before[name])
    assert len(callback.optimizer_state) == 8  # of all parameters, kept
    assert all(state["step"] == 24 for state in callback.optimizer_state.values())


class Evaluated(PlainModule):
    """Records the weights with which it is evaluated, and those with which training continues."""

    def __init__(self):
        super().__init__()
        self.seen = {"validation": [], "test": [], "prediction": []}

    def validation_step(self, batch, batch_idx):
        self.seen["validation"].append(state_of(self.net))

    def test_step(self, batch, batch_idx):
        self.seen["test"].append(state_of(self.net))

    def predict_step(self, batch, batch_idx):
        self.seen["prediction"].append(state_of(self.net))
        return batch


class WithValidation(GrowingData):
    def val_dataloader(self):
        return DataLoader(dataset(size=6), batch_size=6)

    test_dataloader = predict_dataloader = val_dataloader


def test_the_tortoise_is_evaluated_and_the_hare_continues():
    callback = HareAndTortoise(EveryNEpochs(2), momentum=0.7)
    torch.manual_seed(0)
    module, data = Evaluated(), WithValidation()
    fit = trainer(callback, num_sanity_val_steps=0)
    fit.fit(module, datamodule=data)
    assert_same_weights(module, fitted(HareAndTortoise(EveryNEpochs(2), momentum=0.7)))
    hare, tortoise = state_of(module.net), callback.state_dict()["method"]
    fit.test(module, datamodule=data, verbose=False)
    fit.predict(module, datamodule=data)
    assert len(module.seen["validation"]) == 6
    for states in module.seen.values():
        assert any(not torch.equal(states[-1][name], hare[name]) for name in hare)
        for name, value in states[-1].items():
            if value.is_floating_point():
                assert torch.equal(value, tortoise[f"net.{name}"]), name
    assert all(torch.equal(value, hare[name]) for name, value in module.net.state_dict().items())


def test_a_validation_that_fails_leaves_the_hare():
    class Failing(Evaluated):
        def validation_step(self, batch, batch_idx):
            if self.current_epoch == 2:
                raise RuntimeError("stop here")

    torch.manual_seed(0)
    module = Failing()
    with pytest.raises(RuntimeError, match="stop here"):
        trainer(HareAndTortoise(AtEpochs([5])), num_sanity_val_steps=0).fit(module, datamodule=WithValidation())
    assert_same_weights(module, fitted(max_epochs=3))


def test_what_is_logged(tmp_path):
    fitted(HareAndTortoise(AtEpochs([2, 4]), momentum=0.5), folder=tmp_path)
    log = EventAccumulator(str(tmp_path)).Reload()
    assert [event.step for event in log.Scalars("hare_and_tortoise/event")] == [4, 12]
    assert log.Scalars("hare_and_tortoise/sfe")[0].value > 0


def test_a_tortoise_that_has_diverged_is_an_error():
    model = torch.nn.Linear(2, 2)
    both = methods.Tortoise(model, momentum=0.5)
    both.tortoise["weight"][0, 0] = torch.nan
    before = state_of(model)
    with pytest.raises(ValueError, match="NaN or Inf in weight"):
        both.reset_()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_frozen_parameters_and_integers_are_left_alone():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 2))
    model[2].requires_grad_(False)
    names = set(methods.Tortoise(model).tortoise)
    assert names == {"0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var"}


def test_the_tortoise_of_bfloat16_weights_moves_in_steps_too_small_for_it():
    model = torch.nn.Linear(4, 4, bias=False).to(torch.bfloat16)
    both, before = methods.Tortoise(model, momentum=0.999), model.weight.detach().clone()
    with torch.no_grad():
        model.weight.add_(1.0)
    hare = model.weight.detach().clone()
    for _ in range(100):
        both.after_step()
    expected = hare.double() + (before.double() - hare.double()) * 0.999**100
    torch.testing.assert_close(both.tortoise["weight"].double(), expected, rtol=0, atol=1e-5)
    both.swap()
    torch.testing.assert_close(model.weight.double(), expected, rtol=0, atol=5e-3)
    both.swap()
    assert torch.equal(model.weight, hare)
    torch.testing.assert_close(both.tortoise["weight"].double(), expected, rtol=0, atol=1e-5)
