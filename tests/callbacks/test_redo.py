"""`ReDo` through real fits: the units that it resets and how, and that nothing else changes."""

import copy
from itertools import product

import pytest
import reference
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from small_training import PlainModule, assert_same_weights, dataset, fitted, snapshots_of, state_of
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from lightning_fire import AtEpochs, AtNewData, EveryNSteps, HiddenUnits, Loop, PlasticityCallback, ReDo
from lightning_fire.methods.base.change import Change
from lightning_fire.methods.base.unit_reset import unit_resets
from lightning_fire.methods.base.unit_scores import mean_activities

Recorded = snapshots_of(PlasticityCallback)
HIDDEN = {"net.0": ("net.1", "net.3"), "net.3": (None, "net.5")}  # norm and outgoing layer of each


class Snapshots(PlasticityCallback):
    """Keeps weights and optimizer state before and after each event."""

    def act(self, trainer, pl_module):
        before = state_of(pl_module), moments_of(trainer, pl_module)
        values = super().act(trainer, pl_module)
        self.seen = [
            *getattr(self, "seen", []),
            (before, (state_of(pl_module), moments_of(trainer, pl_module)), values),
        ]
        return values


def moments_of(trainer, pl_module):
    state = trainer.optimizers[0].state
    return {
        f"{name} {key}": value.clone()
        for name, parameter in pl_module.named_parameters()
        for key, value in state[parameter].items()
    }


def loop(loss):
    """A plain loop on one batch."""
    return Loop(forward=loss, losses=lambda: [loss()])


SCORES = ("activation", "pre_activation", "gradient")


def measured(state, x, y, score):
    """Samples whose means are the scores of both hidden layers, in training mode: (samples, units)."""
    module = PlainModule()
    module.load_state_dict(state)
    net = module.net
    before = net[0](x)
    first = net[1:3](before)
    second = net[3:5](first)
    if score == "gradient":
        nn.functional.cross_entropy(net[5](second), y).backward()
        return {"net.0": net[0].weight.grad.T, "net.3": net[3].weight.grad.T}
    outputs = (before.relu() if score == "pre_activation" else first, second)
    return {name: output.detach() for name, output in zip(HIDDEN, outputs, strict=True)}


def entries_of(dead, score):
    """Every entry that may move: its key, and an index into it."""
    for layer, units in dead.items():
        norm, after = HIDDEN[layer]
        for unit in units:
            yield f"{layer}.weight", (unit,)
            yield f"{layer}.bias", (unit,)
            if score != "gradient":
                yield f"{after}.weight", (slice(None), unit)
            for name in ("weight", "bias", "running_mean", "running_var") if norm else ():
                yield f"{norm}.{name}", (unit,)


@pytest.mark.parametrize(("score", "threshold"), [*product(SCORES, [0.3, 0.8]), ("activation", 1.5)])
def test_exactly_the_dormant_units_are_re_initialized_and_nothing_else_changes(score, threshold):
    callback = Snapshots(ReDo(threshold=threshold, num_batches=2, score=score), AtEpochs([1, 3]))
    fitted(callback)
    for ((before, moments), (after, moments_after), values), size in zip(callback.seen, (12, 24), strict=True):
        x, y = dataset(size=size).tensors
        # training mode: BatchNorm takes each batch of 6 by itself
        parts = [measured(before, x[batch], y[batch], score) for batch in (slice(6), slice(6, 12))]
        seen = {layer: torch.cat([part[layer] for part in parts]) for layer in HIDDEN}
        dead = {layer: reference.dormant(outputs, threshold) for layer, outputs in seen.items()}
        assert values["redo/units"] == sum(map(len, dead.values()))
        assert values["redo/dormant_fraction"] == values["redo/units"] / 16
        expected = {key: value.clone() for key, value in before.items()}
        for key, where in entries_of(dead, score):
            start = 1.0 if key in ("net.1.weight", "net.1.running_var") else 0.0
            redrawn = key in ("net.0.weight", "net.3.weight") and len(where) == 1
            expected[key][where] = after[key][where] if redrawn else start
        for layer, units in dead.items():
            for unit in units:  # its column is zero also where it crosses a re-initialized row
                if score != "gradient":
                    expected[f"{HIDDEN[layer][1]}.weight"][:, unit] = 0.0
                drawn = after[f"{layer}.weight"][unit]
                drawn = drawn[[i for i in range(len(drawn)) if layer == "net.0" or i not in dead["net.0"]]]
                assert (drawn != 0).all()
                assert not any(value in before[f"{layer}.weight"] for value in drawn)
                assert after[f"{layer}.weight"][unit].abs().max() <= after[f"{layer}.weight"].shape[1] ** -0.5
        for key, value in expected.items():
            assert torch.equal(after[key], value), key
        for key, where in entries_of(dead, score):
            for moment in ("exp_avg", "exp_avg_sq"):
                if f"{key} {moment}" in moments:
                    moments[f"{key} {moment}"][where] = 0.0
        for key, value in moments.items():
            assert torch.equal(moments_after[key], value), key
    assert any(values["redo/units"] for *_, values in callback.seen) or threshold < 0.5


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


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_a_flattened_channel_has_several_columns_in_any_memory_format(memory_format):
    module = Convolutional().to(memory_format=memory_format)
    optimizer = module.configure_optimizers()
    batch = dataset(6).tensors
    module.training_step(batch, 0).backward()
    optimizer.step()
    (layer,) = HiddenUnits().select(module, lambda: module.training_step(batch, 0))
    before = state_of(module)
    momentum = {name: optimizer.state[p]["momentum_buffer"].clone() for name, p in module.named_parameters()}
    Change(parts=unit_resets([(layer, torch.tensor([3, 1]))], seed=0, optimizers=[optimizer])).make()
    after = module.state_dict()
    columns = [4, 5, 6, 7, 12, 13, 14, 15]
    rest = [column for column in range(20) if column not in columns]
    assert after["net.5.weight"][:, columns].abs().max() == 0
    assert torch.equal(after["net.5.weight"][:, rest], before["net.5.weight"][:, rest])
    assert torch.equal(after["net.5.bias"], before["net.5.bias"])
    assert torch.equal(after["net.0.weight"][[0, 2, 4]], before["net.0.weight"][[0, 2, 4]])
    for unit in (1, 3):
        assert not torch.equal(after["net.0.weight"][unit], before["net.0.weight"][unit])
    for name, parameter in module.named_parameters():
        value = optimizer.state[parameter]["momentum_buffer"]
        if name == "net.5.weight":
            assert value[:, columns].abs().max() == 0
            assert torch.equal(value[:, rest], momentum[name][:, rest])
        elif name == "net.5.bias":
            assert torch.equal(value, momentum[name])
        else:
            assert value[[1, 3]].abs().max() == 0
            assert torch.equal(value[[0, 2, 4]], momentum[name][[0, 2, 4]])


@pytest.mark.parametrize(
    ("net", "shape"),
    [
        (nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2)), (3, 2, 6)),
        (nn.Sequential(nn.Conv2d(1, 5, 3), nn.Tanh(), nn.Flatten(), nn.Linear(20, 2)), (2, 1, 4, 4)),
    ],
    ids=["linear", "convolution"],
)
def test_a_pre_activation_is_that_of_the_layer_at_every_position(net, shape):
    x = torch.randn(shape)
    layers = HiddenUnits().select(net, lambda: net(x))
    outputs = net[0](x).detach()
    positions = [dim for dim in range(outputs.ndim) if outputs.shape[dim] != 5]
    torch.testing.assert_close(
        mean_activities(layers, lambda: net(x), "pre_activation"), outputs.relu().mean(positions)
    )


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
    Change(parts=unit_resets([(layer, torch.tensor([2]))], seed=0, optimizers=[])).make()
    torch.testing.assert_close(module.training_step(batch, 0), without)


def test_a_layer_that_is_reset_whole_has_gradients_again():
    """If the outgoing weights of two successive layers were 0, every gradient would be 0."""
    module = PlainModule()
    batch = dataset(6).tensors
    redo = ReDo(threshold=1e9, score="gradient")
    assert redo(module, loop(lambda: module.training_step(batch, 0)))["units"] == 16
    module.training_step(batch, 0).backward()
    assert all(module.net[i].weight.grad.abs().max() > 0 for i in (0, 3))


def test_draws_are_reproducible_and_leave_the_global_random_state():
    results = []
    for _ in range(2):
        torch.manual_seed(0)
        module = PlainModule()
        (layer, _) = HiddenUnits().select(module, lambda module=module: module.net(torch.zeros(2, 6)))
        torch.manual_seed(5)
        Change(parts=unit_resets([(layer, torch.arange(8))], seed=7, optimizers=[])).make()
        results.append((module.net[0].weight.clone(), torch.rand(1)))
    torch.manual_seed(5)
    assert torch.equal(results[0][0], results[1][0])
    assert results[0][1] == torch.rand(1)


@pytest.mark.parametrize("score", SCORES)
def test_a_look_without_a_reset_changes_nothing_in_the_whole_run(score):
    """No unit is below a threshold of 0 here."""
    callback = PlasticityCallback(
        ReDo(threshold=0.0, where=HiddenUnits(include=["net.0"]), score=score), EveryNSteps(4)
    )
    assert_same_weights(fitted(callback), fitted())
    assert callback.num_events == 5


def test_it_begins_with_its_chunk():
    """As in the FIRE authors' code: once the first epoch on that data has ended, and at the start of chunk 2."""
    callback = Recorded(ReDo(threshold=0.5), start_chunk=1)
    fitted(callback)
    assert callback.epochs == [3, 4, 5]  # chunk 1 begins with epoch 2, chunk 2 with epoch 4


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


def test_a_run_resumed_around_its_chunk_acts_at_the_same_epochs(tmp_path):
    build = lambda: Recorded(ReDo(threshold=0.8, score="pre_activation"), start_chunk=1)  # noqa: E731
    save = ModelCheckpoint(tmp_path, "{step}", save_top_k=-1, every_n_train_steps=1)
    whole = fitted(build(), save)
    for step, epochs in {4: [3, 4, 5], 5: [3, 4, 5], 8: [3, 4, 5], 9: [4, 5]}.items():  # chunk 1 begins at step 4
        resumed = build()
        module = fitted(resumed, seed=99, ckpt_path=tmp_path / f"step={step}.ckpt")
        assert resumed.epochs == epochs
        if step in (4, 8):  # at the end of an epoch: a plain loader cannot go on within one
            assert_same_weights(module, whole)


def test_what_is_logged(tmp_path):
    callback = Snapshots(ReDo(threshold=0.8), AtEpochs([1]))
    fitted(callback, folder=tmp_path)
    log = EventAccumulator(str(tmp_path)).Reload()
    values = callback.seen[0][2]
    assert values["redo/units"] > 0
    for key in ("redo/units", "redo/dormant_fraction", "redo.layers/dormant_fraction/net.3"):
        assert log.Scalars(key)[0].value == pytest.approx(values[key])
    assert log.Scalars("redo/event")[0].step == 2


def test_a_layer_that_cannot_be_re_initialized_is_an_error_before_training():
    module = PlainModule()
    module.net[3].reset_parameters = None
    with pytest.raises(
        ValueError, match=r"net.3 cannot be re-initialized, .* where=HiddenUnits\(exclude=\['net\\\\.3'\]\)"
    ):
        fitted(PlasticityCallback(ReDo()), module=module)
    fitted(PlasticityCallback(ReDo(where=HiddenUnits(exclude=[r"net\.3"]))), module=module, max_epochs=2)
