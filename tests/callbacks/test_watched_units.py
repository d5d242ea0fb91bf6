"""`ContinualBackprop` and `SelfNormalizedReset` through real fits: what counts as a step, rates, thresholds."""

import copy

import pytest
import torch
from lightning.pytorch import Callback
from small_training import GrowingData, PlainModule, dataset, fitted, trainer
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from lightning_fire import ContinualBackprop, HiddenUnits, PlasticityCallback, SelfNormalizedReset


class HasDeadUnits(PlainModule):
    """Units 2 and 5 of the second hidden layer never fire; the others of that layer always do."""

    def __init__(self):
        super().__init__()
        with torch.no_grad():
            self.net[3].bias[:] = 1e3
            self.net[3].bias[[2, 5]] = -1e3


def test_dead_units_are_reset_and_live_ones_are_not():
    callback = PlasticityCallback(SelfNormalizedReset(max_silence=24, where=HiddenUnits(include=["net.3"])))
    module = fitted(callback, module=HasDeadUnits(), max_epochs=2)  # 4 steps of 6 samples; allowed: 12
    assert callback._state["num_reset"] == 2
    assert module.net[3].bias[[2, 5]].abs().max() < 1
    assert module.net[3].bias[[0, 1, 3, 4, 6, 7]].min() > 900


def test_without_refreshes_only_the_first_threshold_counts():
    """A unit that never fires has no intervals yet: its threshold stays."""
    callback = PlasticityCallback(SelfNormalizedReset(refresh_every=1, max_silence=1000))
    fitted(callback, module=HasDeadUnits(), max_epochs=2)
    record = callback._state["records"]["net.3"]
    assert record["threshold"][[2, 5]].tolist() == [500, 500]
    assert record["age"][[2, 5]].tolist() == [24, 24]


def test_accumulated_batches_are_one_step():
    callback = PlasticityCallback(SelfNormalizedReset(refresh_every=100, max_silence=10**6))
    fitted(callback, accumulate_grad_batches=2, max_epochs=2)
    record = callback._state["records"]["net.3"]
    assert record["steps"] == 2
    assert record["silences"].shape == (2, 8)
    assert set(record["age"].tolist()) <= {0, 12, 24}


class DiesAgain(PlainModule):
    """Units 2 and 5 of the second hidden layer are killed at each third step, and reset again and again."""

    def on_train_batch_start(self, batch, batch_idx):
        if self.global_step % 3 == 0:
            with torch.no_grad():
                self.net[3].bias[[2, 5]] = -1e3


def test_thresholds_stay_between_the_largest_step_and_the_longest_interval():
    """A short last batch, and one step that is longer than the first threshold."""

    class Ragged(GrowingData):
        def train_dataloader(self):
            return DataLoader(dataset(size=26), batch_size=6)

    callback = PlasticityCallback(SelfNormalizedReset(0.3, refresh_every=5, max_silence=1000))
    fitted(callback, data=Ragged(), max_epochs=2)  # each refresh falls on a batch of 2
    assert all(record["threshold"].min() >= 6 for record in callback._state["records"].values())
    callback = PlasticityCallback(
        SelfNormalizedReset(refresh_every=100, max_silence=8, where=HiddenUnits(include=["net.3"]))
    )
    fitted(callback, module=HasDeadUnits(), max_epochs=1)  # half of 8 is less than a batch of 6, twice that more
    assert callback._state["num_reset"] == 2
    grown = PlasticityCallback(SelfNormalizedReset(0.3, refresh_every=1, max_silence=8))
    fitted(grown, module=DiesAgain())
    assert max(int(record["threshold"].max()) for record in grown._state["records"].values()) <= 8


class Sometimes(PlainModule):
    """Leaves its first layers out on every other batch."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        hidden = self.net[:3](x) if batch_idx % 2 else nn.functional.pad(x, (0, 2))
        return nn.functional.cross_entropy(self.net[3:](hidden), y)


def test_layers_that_run_only_in_some_steps_do_not_delay_the_others():
    callback = PlasticityCallback(
        SelfNormalizedReset(refresh_every=100, max_silence=10**6, where=HiddenUnits(include=["net.3"]))
    )
    fitted(callback, module=Sometimes(), max_epochs=2)
    assert callback._state["records"]["net.3"]["steps"] == 4


def test_a_fit_after_an_error_continues_with_the_ages():
    class Fails(HasDeadUnits):
        fails = True

        def on_train_epoch_end(self):
            if self.fails:
                raise RuntimeError("on purpose")

    callback, module = (
        PlasticityCallback(SelfNormalizedReset(max_silence=10**6, where=HiddenUnits(include=["net.3"]))),
        Fails(),
    )
    with pytest.raises(RuntimeError, match="on purpose"):
        fitted(callback, module=module)
    module.fails = False
    trainer(callback, max_epochs=1).fit(module, datamodule=GrowingData((1,)))
    assert callback._state["records"]["net.3"]["age"][[2, 5]].tolist() == [24, 24]


def test_the_recomputation_of_gradient_checkpointing_does_not_count():
    class Recomputes(HasDeadUnits):
        def training_step(self, batch, batch_idx):
            x, y = batch
            logits = checkpoint(self.net[3:], self.net[:3](x), use_reentrant=False)
            return nn.functional.cross_entropy(logits, y)

    callback = PlasticityCallback(SelfNormalizedReset(max_silence=10**6, where=HiddenUnits(include=["net.3"])))
    fitted(callback, module=Recomputes(), max_epochs=2)
    assert callback._state["records"]["net.3"]["age"][[2, 5]].tolist() == [24, 24]


def test_a_small_rate_adds_up():
    """A fraction of 1/160 of 16 units a step: int(ρ · n) would always be 0."""
    callback = PlasticityCallback(ContinualBackprop(replacement_rate=1 / 160, maturity=0))
    fitted(callback)
    assert callback._state["num_reset"] == 2  # 24 steps · 8 units / 160 = 1.15 for each of two layers


def test_accumulated_batches_are_one_step_of_continual_backprop():
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


def test_an_average_that_is_made_during_training_takes_the_units_that_are_reset():
    class Late(Callback):
        follows = None

        def on_train_batch_end(self, trainer, pl_module, *_):
            if not hasattr(pl_module, "average"):
                pl_module.average = AveragedModel(pl_module.net)

        def on_train_epoch_end(self, trainer, pl_module):
            self.follows = torch.equal(pl_module.average.module[3].weight, pl_module.net[3].weight)

    late = Late()
    fitted(late, PlasticityCallback(ContinualBackprop(1.0, maturity=1)), max_epochs=1)
    assert late.follows
