"""`SelfNormalizedReset` through real fits: equal to a slow loop over units, and the rest of its contract."""

from functools import partial

import pytest
import torch
from slow_unit_resets import built, built_with_shift, slow_training
from small_training import GrowingData, PlainModule, dataset, fitted, trainer
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from lightning_fire import HiddenUnits, PlasticityCallback, SelfNormalizedReset

OFTEN = {"rejection": 0.3, "refresh_every": 3, "max_silence": 24}


def probability_of_at_least(age, silences):
    return sum(silence >= age for silence in silences) / len(silences)


def slow(rejection, refresh_every, max_silence, expansion=2.0, start_epoch=0, **options):
    """Train in a plain loop; thresholds by trying every possible inter-firing interval."""
    age = [[0] * 8 for _ in range(2)]
    threshold = [[max_silence // 2] * 8 for _ in range(2)]
    silences = [[[] for _ in range(8)] for _ in range(2)]
    steps = largest = 0

    def rule(batch_size, layers_after, outputs, activities):
        nonlocal steps, largest
        steps, largest = steps + 1, max(largest, batch_size)
        chosen = [[], []]
        for i, h in enumerate(outputs):
            for unit in range(8):
                if bool((h[:, unit] > 0).any()):
                    silences[i][unit].append(age[i][unit])
                    age[i][unit] = 0
                else:
                    age[i][unit] += batch_size
                if steps % refresh_every == 0:
                    seen = silences[i][unit]
                    if seen:
                        improbable = min(a for a in range(1000) if probability_of_at_least(a, seen) <= rejection + 1e-9)
                        likely = improbable - 1
                        if likely > threshold[i][unit]:
                            likely = int(threshold[i][unit] * expansion)
                        threshold[i][unit] = likely
                    threshold[i][unit] = max(min(threshold[i][unit], max_silence), largest)
                    silences[i][unit] = []
                if age[i][unit] > max(threshold[i][unit], largest):
                    silences[i][unit].append(age[i][unit])
                    age[i][unit] = 0
                    chosen[i].append(unit)
        return chosen

    return slow_training(rule, start_epoch, **options)


@pytest.mark.parametrize(
    ("options", "resets"),
    [
        (OFTEN, 4),
        ({**OFTEN, "start_epoch": 2}, 3),
        ({"rejection": 0.1, "refresh_every": 5, "max_silence": 12, "expansion": 1.5}, 3),
        ({"rejection": 0.05, "refresh_every": 2, "max_silence": 30, "seed": 7}, 3),
    ],
)
def test_it_equals_the_slow_loop(options, resets):
    expected, number = slow(**options)
    callback = PlasticityCallback(
        SelfNormalizedReset(**{key: value for key, value in options.items() if key != "start_epoch"}),
        start_chunk=options.get("start_epoch", 0) // 2,
    )
    fast = fitted(callback, module=built())
    assert callback._state["num_reset"] == number >= resets
    for name, tensor in fast.state_dict().items():
        torch.testing.assert_close(tensor, expected.state_dict()[name], rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.parametrize("norm", [True, False], ids=["batch_norm", "no_norm"])
def test_by_pre_activation_it_equals_the_slow_loop(norm):
    callback = PlasticityCallback(SelfNormalizedReset(score="pre_activation", **OFTEN))
    build = partial(built_with_shift, norm)
    fast = fitted(callback, module=build())
    expected, number = slow(**OFTEN, score="pre_activation", build=build)
    assert callback._state["num_reset"] == number >= 3
    for name, tensor in fast.state_dict().items():
        torch.testing.assert_close(tensor, expected.state_dict()[name], rtol=1e-3, atol=1e-4, msg=name)
    _, by_activation = slow(**OFTEN, build=build)
    assert (number > by_activation) == norm  # before a ReLU alone a unit fires as after it


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


def test_what_is_logged(tmp_path):
    fitted(PlasticityCallback(SelfNormalizedReset(**OFTEN), start_chunk=1), folder=tmp_path)
    events = EventAccumulator(str(tmp_path)).Reload()
    thresholds = [event.value for event in events.Scalars("snr/threshold")]
    assert all(6 <= value <= 24 for value in thresholds)
