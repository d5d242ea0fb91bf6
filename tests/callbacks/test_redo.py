"""`ReDo` through real fits: the units that it resets and how, and that nothing else changes."""

import copy

import pytest
import torch
from small_training import PlainModule, dataset, fitted, snapshots_of
from torch import nn

from lightning_fire import AtNewData, EveryNSteps, HiddenUnits, Loop, PlasticityCallback, ReDo
from lightning_fire.methods.base.change import Change
from lightning_fire.methods.base.unit_reset import reset_units

Recorded = snapshots_of(PlasticityCallback)


def loop(loss):
    """A plain loop on one batch."""
    return Loop(forward=loss, losses=lambda: [loss()])


SCORES = ("activation", "pre_activation", "gradient")


class Convolutional(PlainModule):
    """Convolution, BatchNorm and pooling flattened into a Linear layer: 2·2 inputs for each channel."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 5, 3, padding=1), nn.BatchNorm2d(5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(20, 3)
        )

    def training_step(self, batch, batch_idx):
        x, y = batch
        x = torch.cat([x, x, x[:, :4]], 1).view(-1, 1, 4, 4)
        return nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


@pytest.mark.parametrize("score", SCORES)
def test_the_gradients_of_a_plain_loop_stay(score):
    module = Convolutional()
    batch = dataset(6).tensors
    module.training_step(batch, 0).backward()
    before = [parameter.grad.clone() for parameter in module.parameters()]
    assert ReDo(threshold=1.0, score=score)(module, loop(lambda: module.training_step(batch, 0)))["units"] > 0
    assert all(torch.equal(p.grad, grad) for p, grad in zip(module.parameters(), before, strict=True))


def test_a_saturated_unit_has_zero_gradient_and_a_large_activation():
    """Liu et al., section 3: the activation of such a unit hides that it cannot learn."""
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    nn.init.constant_(net[0].bias[:1], 30.0)
    x = torch.randn(16, 3)
    for score in SCORES:
        own = copy.deepcopy(net)
        ReDo(threshold=0.025, score=score)(own, loop(lambda own=own: own(x).square().mean()))
        assert torch.equal(own[0].weight[0], net[0].weight[0]) == (score != "gradient"), score


def test_a_reset_unit_does_not_contribute_to_the_output_at_first():
    """The outputs are those of the network without it."""
    module = Convolutional().eval()
    batch = dataset(6).tensors
    (layer,) = HiddenUnits().select(module, lambda: module.training_step(batch, 0))
    with torch.no_grad():
        module.net[5].weight[:, 8:12] = 0.0
    without = module.training_step(batch, 0)
    values = {}
    reset_units(values, [(layer, torch.tensor([2]))], 0, module, Loop())
    Change(values).make()
    torch.testing.assert_close(module.training_step(batch, 0), without)


def test_a_layer_that_is_reset_whole_has_gradients_again():
    """If the outgoing weights of two successive layers were 0, every gradient would be 0."""
    module = PlainModule()
    batch = dataset(6).tensors
    redo = ReDo(threshold=1e9, score="gradient")
    assert redo(module, loop(lambda: module.training_step(batch, 0)))["units"] == 16
    module.training_step(batch, 0).backward()
    assert all(module.net[i].weight.grad.abs().max() > 0 for i in (0, 3))


@pytest.mark.parametrize(
    ("when", "start_chunk", "steps"),
    [
        (EveryNSteps(2), 1, [6, 8, 10, 12, 14, 16]),
        (EveryNSteps(1), 0, list(range(1, 18))),
        (AtNewData(skip_first=False), 0, [0, 4, 12]),
    ],
)
def test_an_event_before_the_first_batch_on_new_data_belongs_to_the_chunk_before(when, start_chunk, steps):
    callback = Recorded(ReDo(threshold=0.0), when, start_chunk=start_chunk)
    fitted(callback, max_epochs=5)
    assert callback.steps == steps


def test_a_layer_that_cannot_be_re_initialized_is_an_error_before_training():
    module = PlainModule()
    module.net[3].reset_parameters = None
    with pytest.raises(
        ValueError, match=r"net.3 cannot be re-initialized, .* where=HiddenUnits\(exclude=\['net\\\\.3'\]\)"
    ):
        fitted(PlasticityCallback(ReDo()), module=module)
    fitted(PlasticityCallback(ReDo(where=HiddenUnits(exclude=[r"net\.3"]))), module=module, max_epochs=2)


def test_an_event_logs_these_keys():
    method = Recorded(ReDo(threshold=0.7), EveryNSteps(3))
    fitted(method, max_epochs=3)
    layers = {f"redo.layers/dormant_fraction/net.{index}" for index in (0, 3)}
    assert set(method.seen[0][2]) == {"redo/event", "redo/dormant_fraction", "redo/units", *layers}


@pytest.mark.parametrize("score", ["activation", "pre_activation"])
def test_units_that_are_flattened_before_their_nonlinearity(score):
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.ReLU(), nn.Linear(16, 2))
    with torch.no_grad():
        net[0].bias[1:3] = -50.0
    before, x = copy.deepcopy(net), torch.randn(8, 1, 4, 4)
    assert ReDo(score=score)(net, loop(lambda: net(x)))["units"] == 2
    changed = [not torch.equal(new, old) for new, old in zip(net[0].weight, before[0].weight, strict=True)]
    assert changed == [False, True, True, False]
    assert not net[0].bias[1:3].any() and not net[3].weight[:, 4:12].any()
    kept = [*range(4), *range(12, 16)]
    assert torch.equal(net[3].weight[:, kept], before[3].weight[:, kept])
