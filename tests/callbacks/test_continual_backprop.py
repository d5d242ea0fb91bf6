"""`ContinualBackprop` through real fits: equal to a slow loop over units, and the rest of its contract."""

import copy
from functools import partial

import pytest
import torch
from slow_unit_resets import built, built_with_shift, slow_training
from small_training import GrowingData, PlainModule, assert_same_weights, fitted, trainer
from torch.utils.data import DataLoader

from lightning_fire import ContinualBackprop, PlasticityCallback


def slow(replacement_rate, maturity, decay=0.99, compensate=True, start_epoch=0, **options):
    """Train in a plain loop, unit by unit."""
    utility, mean, age = ([[0.0] * 8 for _ in range(2)] for _ in range(3))
    owed = [0.0, 0.0]

    def rule(batch_size, layers_after, outputs, activities):
        chosen = []
        for i, (after, scored, h) in enumerate(zip(layers_after, outputs, activities, strict=True)):
            for unit in range(8):
                score = float(scored[:, unit].abs().mean() * after.weight[:, unit].abs().sum())
                utility[i][unit] = decay * utility[i][unit] + (1 - decay) * score
                mean[i][unit] = decay * mean[i][unit] + (1 - decay) * float(h[:, unit].mean())
                age[i][unit] += 1
            old = [unit for unit in range(8) if age[i][unit] > maturity]
            owed[i] += replacement_rate * len(old)
            number = int(owed[i])
            owed[i] -= number
            old.sort(key=lambda unit, i=i: utility[i][unit] / (1 - decay ** age[i][unit]))
            for unit in old[:number]:
                if compensate:
                    after.bias += after.weight[:, unit] * mean[i][unit] / (1 - decay ** age[i][unit])
                utility[i][unit] = mean[i][unit] = age[i][unit] = 0.0
            chosen.append(old[:number])
        return chosen

    return slow_training(rule, start_epoch, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"replacement_rate": 0.1, "maturity": 2},
        {"replacement_rate": 0.1, "maturity": 2, "start_epoch": 2},
        {"replacement_rate": 0.03, "maturity": 5, "decay": 0.9, "compensate": False},
        {"replacement_rate": 0.02, "maturity": 0, "seed": 7},
    ],
)
def test_it_equals_the_slow_loop(options):
    expected, replaced = slow(**options)
    callback = PlasticityCallback(
        ContinualBackprop(**{key: value for key, value in options.items() if key != "start_epoch"}),
        start_chunk=options.get("start_epoch", 0) // 2,
    )
    fast = fitted(callback, module=built())
    assert callback._state["num_reset"] == replaced > 2
    for name, tensor in fast.state_dict().items():
        torch.testing.assert_close(tensor, expected.state_dict()[name], rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.parametrize("compensate", [True, False])
@pytest.mark.parametrize("norm", [True, False], ids=["batch_norm", "no_norm"])
def test_by_pre_activation_it_equals_the_slow_loop(norm, compensate):
    """The utility is that of outputs before the norm; what is compensated, of those after the nonlinearity."""
    how = {"compensate": compensate, "score": "pre_activation"}
    callback = PlasticityCallback(ContinualBackprop(0.1, maturity=2, **how))
    build = partial(built_with_shift, norm)
    fast = fitted(callback, module=build())
    expected, replaced = slow(0.1, 2, build=build, **how)
    assert callback._state["num_reset"] == replaced > 2
    for name, tensor in fast.state_dict().items():
        torch.testing.assert_close(tensor, expected.state_dict()[name], rtol=1e-3, atol=1e-4, msg=name)
    by_activation, _ = slow(0.1, 2, build=build, compensate=compensate)
    assert not torch.allclose(by_activation.net[0].weight, expected.net[0].weight, atol=0.1)


def test_a_small_rate_adds_up():
    """A fraction of 1/160 of 16 units a step: int(ρ · n) would always be 0."""
    callback = PlasticityCallback(ContinualBackprop(replacement_rate=1 / 160, maturity=0))
    fitted(callback)
    assert callback._state["num_reset"] == 2  # 24 steps · 8 units / 160 = 1.15 for each of two layers


def test_a_rate_of_zero_changes_nothing():
    assert_same_weights(fitted(PlasticityCallback(ContinualBackprop(replacement_rate=0.0))), fitted())


class Validates(PlainModule):
    """Runs on other data in between."""

    def validation_step(self, batch, batch_idx):
        self.net(10 * batch[0])


def test_only_training_batches_count():
    class Data(GrowingData):
        def val_dataloader(self):
            return DataLoader(super().train_dataloader().dataset, batch_size=6)

    callback, plain = (
        PlasticityCallback(ContinualBackprop(0.1, maturity=2)),
        PlasticityCallback(ContinualBackprop(0.1, maturity=2)),
    )
    torch.manual_seed(0)
    module = Validates()
    with_validation = fitted(callback, module=module, data=Data(), val_check_interval=1, num_sanity_val_steps=1)
    assert_same_weights(with_validation, fitted(plain))


def test_accumulated_batches_are_one_step():
    callback = PlasticityCallback(ContinualBackprop(replacement_rate=0.1, maturity=0))
    fitted(callback, accumulate_grad_batches=2)
    assert callback._state["num_reset"] == 2 * int(0.8 * 12)  # 12 steps of 8 units in each of two layers


def test_several_fits_continue_and_copies_are_independent():
    callback, module = PlasticityCallback(ContinualBackprop(replacement_rate=0.01, maturity=0)), PlainModule()
    data = GrowingData((1,))
    for _ in range(2):
        trainer(callback, max_epochs=1).fit(module, datamodule=data)
    assert callback._state["records"]["net.0"]["age"].tolist() == [4] * 8
    assert copy.deepcopy(callback)._state["records"]["net.0"]["owed"] == pytest.approx(0.32)
    assert all(not part._forward_pre_hooks for part in module.modules())


def test_hooks_are_gone_after_an_error():
    class Fails(PlainModule):
        def on_train_epoch_end(self):
            raise RuntimeError("on purpose")

    module = Fails()
    with pytest.raises(RuntimeError, match="on purpose"):
        fitted(PlasticityCallback(ContinualBackprop()), module=module)
    assert all(not part._forward_pre_hooks for part in module.modules())
