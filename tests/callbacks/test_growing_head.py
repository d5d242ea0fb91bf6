"""A head that grows in `on_train_epoch_start`: every method takes the new one, wherever RestartSchedulers stands."""

import pytest
import torch
from methods_table import ALL, callback_of
from small_training import GrowingData, PlainModule, assert_same_weights, fitted
from torch import nn

from lightning_fire import (
    FIRE,
    L2Init,
    PlasticityCallback,
    PlasticityMonitor,
    RestartSchedulers,
)

SETTLED = "plasticity_injection"  # wraps the head before a training
pytestmark = pytest.mark.filterwarnings("ignore:GrowingHead has no normalization layer")


class GrowingHead(PlainModule):
    """Gets a head with more outputs where the second chunk starts."""

    def __init__(self):
        super().__init__()
        self.heads = []

    def on_train_epoch_start(self):
        if self.current_epoch == 2:
            torch.manual_seed(1)
            self.net[5] = nn.Linear(8, 5)
            self.heads = [self.net[5].weight.detach().clone()]

    def training_step(self, batch, batch_idx):
        if self.current_epoch == 2:
            self.heads.append(self.net[5].weight.detach().clone())
        return super().training_step(batch, batch_idx)


def grown(*callbacks):
    torch.manual_seed(0)
    return fitted(*callbacks, module=GrowingHead(), data=GrowingData((2, 2)), max_epochs=4)


@pytest.mark.parametrize("name", [name for name in ALL if name != SETTLED])
def test_the_order_of_callbacks_does_not_matter(name):
    first, second = callback_of(name), callback_of(name)
    one, other = grown(RestartSchedulers(), first), grown(second, RestartSchedulers())
    assert_same_weights(one, other)
    assert one.net[5].weight.shape == (5, 8)
    assert not torch.equal(one.heads[0], one.net[5].weight)  # it is trained


def test_an_event_changes_the_new_head():
    module = grown(PlasticityCallback(FIRE()), RestartSchedulers())
    assert not torch.equal(*module.heads[:2])


def test_without_a_restart_the_event_says_that_the_new_head_is_left_out(caplog):
    module = grown(PlasticityCallback(FIRE()))
    assert torch.equal(*module.heads[:2])
    lines = [text for text in caplog.messages if "leaves out" in text]
    assert lines == ["FIRE leaves out net.5.weight: no optimizer trains it."]


def test_a_penalty_pulls_the_new_head_to_its_own_first_values():
    far, near = (grown(PlasticityCallback(L2Init(strength)), RestartSchedulers()) for strength in (1e-9, 10.0))
    distances = [torch.dist(module.net[5].weight, module.heads[0]) for module in (far, near)]
    assert distances[1] < 0.2 * distances[0]


def test_the_monitor_looks_at_the_new_head(caplog):
    module = grown(PlasticityMonitor(data_every_n_steps=1), RestartSchedulers())
    assert "logs weights only" not in caplog.text
    assert "plasticity/dormant_fraction" in module.trainer.callback_metrics
