"""`ContinualBackprop` through real fits: equal to a slow loop over units, and the rest of its contract."""

import copy

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from small_training import GrowingData, PlainModule, assert_same_weights, fitted, trainer
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.utils.data import DataLoader

from lightning_fire import ContinualBackprop, HiddenUnits

STRIDE = 1_000_003  # between the seeds of two resets


class WithMomentum(PlainModule):
    """Adam would blow up the rounding of a gradient that is zero: of the bias before the BatchNorm."""

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def built():
    torch.manual_seed(0)
    return WithMomentum()


def slow(rate, maturity, decay=0.99, compensate=True, start_epoch=0, seed=0):
    """Train over `GrowingData` in a plain loop, unit by unit."""
    module = built()
    net, optimizer = module.net, module.configure_optimizers()
    layers = [(net[0], net[1], net[3]), (net[3], None, net[5])]  # layer, its norm, the layer after it
    utility, mean, age = ([[0.0] * 8 for _ in layers] for _ in range(3))
    owed, replaced = [0.0, 0.0], 0
    data = GrowingData()
    data.trainer = trainer()
    for epoch in range(6):
        data.trainer.fit_loop.epoch_progress.current.completed = epoch
        for x, y in DataLoader(data.train_dataloader().dataset, batch_size=6):
            first = net[:3](x)
            second = net[3:5](first)
            optimizer.zero_grad()
            nn.functional.cross_entropy(net[5](second), y).backward()
            optimizer.step()
            if epoch < start_epoch:
                continue
            with torch.no_grad():
                chosen = []
                for i, ((_, _, after), h) in enumerate(zip(layers, (first.detach(), second.detach()), strict=True)):
                    for unit in range(8):
                        score = float(h[:, unit].abs().mean() * after.weight[:, unit].abs().sum())
                        utility[i][unit] = decay * utility[i][unit] + (1 - decay) * score
                        mean[i][unit] = decay * mean[i][unit] + (1 - decay) * float(h[:, unit].mean())
                        age[i][unit] += 1
                    old = [unit for unit in range(8) if age[i][unit] > maturity]
                    owed[i] += rate * len(old)
                    number = int(owed[i])
                    owed[i] -= number
                    old.sort(key=lambda unit, i=i: utility[i][unit] / (1 - decay ** age[i][unit]))
                    for unit in old[:number]:
                        if compensate:
                            after.bias += after.weight[:, unit] * mean[i][unit] / (1 - decay ** age[i][unit])
                        utility[i][unit] = mean[i][unit] = age[i][unit] = 0.0
                    if old[:number]:
                        chosen.append((layers[i], old[:number]))
                for index, ((layer, norm, _), units) in enumerate(chosen):
                    torch.manual_seed(seed + STRIDE * (replaced + 1) + index)
                    fresh = nn.Linear(layer.in_features, layer.out_features).weight
                    for unit in units:
                        zeroed = [(layer.bias, unit)]
                        layer.weight[unit] = fresh[unit]
                        layer.bias[unit] = 0.0
                        if norm is not None:
                            norm.weight[unit], norm.bias[unit] = 1.0, 0.0
                            norm.running_mean[unit], norm.running_var[unit] = 0.0, 1.0
                            zeroed += [(norm.weight, unit), (norm.bias, unit)]
                        for parameter, where in [(layer.weight, unit), *zeroed]:
                            optimizer.state[parameter]["momentum_buffer"][where] = 0.0
                for (_, _, after), units in chosen:
                    for unit in units:
                        after.weight[:, unit] = 0.0
                        optimizer.state[after.weight]["momentum_buffer"][:, unit] = 0.0
                replaced += sum(len(units) for _, units in chosen)
    return module, replaced


@pytest.mark.parametrize(
    "options",
    [
        {"replacement_rate": 0.1, "maturity": 2},
        {"replacement_rate": 0.03, "maturity": 5, "decay": 0.9, "compensate": False},
        {"replacement_rate": 0.02, "maturity": 0, "seed": 7},
    ],
)
def test_it_equals_the_slow_loop(options):
    callback = ContinualBackprop(**options)
    fast = fitted(callback, module=built())
    rate, maturity = options["replacement_rate"], options["maturity"]
    rest = {key: value for key, value in options.items() if key not in ("replacement_rate", "maturity")}
    expected, replaced = slow(rate, maturity, **rest)
    assert callback.num_reset == replaced > 2
    for name, tensor in fast.state_dict().items():
        torch.testing.assert_close(tensor, expected.state_dict()[name], rtol=1e-3, atol=1e-4, msg=name)


def test_a_small_rate_adds_up():
    """A share of 1/160 of 16 units a step: int(ρ · n) would be 0 for ever."""
    callback = ContinualBackprop(replacement_rate=1 / 160, maturity=0)
    fitted(callback)
    assert callback.num_reset == 2  # 24 steps · 8 units / 160 = 1.15 for each of two layers


def test_a_rate_of_zero_changes_nothing():
    assert_same_weights(fitted(ContinualBackprop(replacement_rate=0.0)), fitted())


def test_it_begins_with_its_chunk():
    callback = ContinualBackprop(replacement_rate=0.1, maturity=2, start_chunk=1)
    fast = fitted(callback, module=built())
    expected, replaced = slow(0.1, 2, start_epoch=2)
    assert callback.num_reset == replaced > 2
    for name, tensor in fast.state_dict().items():
        torch.testing.assert_close(tensor, expected.state_dict()[name], rtol=1e-3, atol=1e-4, msg=name)


class Validates(PlainModule):
    """Runs on other data in between."""

    def validation_step(self, batch, batch_idx):
        self.net(10 * batch[0])


def test_only_training_batches_count():
    class Data(GrowingData):
        def val_dataloader(self):
            return DataLoader(super().train_dataloader().dataset, batch_size=6)

    callback, plain = ContinualBackprop(0.1, maturity=2), ContinualBackprop(0.1, maturity=2)
    torch.manual_seed(0)
    module = Validates()
    with_validation = fitted(callback, module=module, data=Data(), val_check_interval=1, num_sanity_val_steps=1)
    assert_same_weights(with_validation, fitted(plain))


def test_accumulated_batches_are_one_step():
    callback = ContinualBackprop(replacement_rate=0.1, maturity=0)
    fitted(callback, accumulate_grad_batches=2)
    assert callback.num_reset == 2 * int(0.8 * 12)  # 12 steps of 8 units in each of two layers


@pytest.mark.parametrize("stop", [{"every_n_epochs": 1, "save_on_train_epoch_end": True}, {"every_n_train_steps": 5}])
def test_a_resumed_run_equals_the_uninterrupted_one_bit_for_bit(tmp_path, stop):
    """Ages, utilities and what is owed are in the checkpoint."""
    build = lambda: ContinualBackprop(replacement_rate=0.07, maturity=2)  # noqa: E731
    whole = fitted(build(), ModelCheckpoint(tmp_path, "{step}", save_top_k=-1, **stop))
    names = ["step=4", "step=8", "step=12"] if "every_n_epochs" in stop else []
    for name in names:
        assert_same_weights(fitted(build(), seed=99, ckpt_path=tmp_path / f"{name}.ckpt"), whole)
    for checkpoint in tmp_path.glob("*.ckpt"):
        state = torch.load(checkpoint, weights_only=True)["callbacks"][build().state_key]
        assert set(state["records"]) == {"net.0", "net.3"}
        assert state["records"]["net.0"]["age"].max() == torch.load(checkpoint, weights_only=True)["global_step"]


def test_several_fits_go_on_and_copies_are_independent():
    callback, module = ContinualBackprop(replacement_rate=0.01, maturity=0), PlainModule()
    data = GrowingData((1,))
    for _ in range(2):
        trainer(callback, max_epochs=1).fit(module, datamodule=data)
    assert callback._restored["net.0"]["age"].tolist() == [4] * 8
    assert copy.deepcopy(callback)._restored["net.0"]["owed"] == pytest.approx(0.32)
    assert all(not part._forward_pre_hooks for part in module.modules())


def test_hooks_are_gone_after_an_error():
    class Fails(PlainModule):
        def on_train_epoch_end(self):
            raise RuntimeError("on purpose")

    module = Fails()
    with pytest.raises(RuntimeError, match="on purpose"):
        fitted(ContinualBackprop(), module=module)
    assert all(not part._forward_pre_hooks for part in module.modules())


def test_what_is_logged(tmp_path):
    callback = ContinualBackprop(replacement_rate=0.1, maturity=2, start_chunk=1)
    fitted(callback, folder=tmp_path)
    values = [event.value for event in EventAccumulator(str(tmp_path)).Reload().Scalars("continual_backprop/units")]
    assert len(values) == 4
    assert values[-1] == callback.num_reset


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"replacement_rate": 2}, r"`replacement_rate` must be in \[0, 1\], got 2"),
        ({"maturity": -1}, "`maturity` must be at least 0, got -1"),
        ({"decay": 1.0}, r"`decay` must be in \[0, 1\), got 1.0"),
        ({"start_chunk": -1}, "`start_chunk` must be at least 0, got -1"),
    ],
)
def test_arguments_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        ContinualBackprop(**options)


def test_a_selection_without_units_is_refused_before_the_first_step():
    with pytest.raises(ValueError, match="layer99"):
        fitted(ContinualBackprop(where=HiddenUnits(include=["layer99"])))
