"""Averages of weights begin again from the new weights; units that are reset are reset in them, too."""

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from lightning_fire import (
    FIRE,
    ContinualBackprop,
    EventMethod,
    FullReset,
    Loop,
    PlasticityInjection,
    ReDo,
    SelfNormalizedReset,
    fire_,
)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))


class TimmLike(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.module, self.decay = copy.deepcopy(model), 0.999

    def update(self, model):
        for average, value in zip(self.module.parameters(), model.parameters(), strict=True):
            average.data.lerp_(value.data, 1 - self.decay)


class ShadowParams:
    """As of diffusers and torch_ema."""

    def __init__(self, model):
        self.decay, self.num_updates = 0.999, 0
        self.shadow_params = [p.detach().clone() for p in model.parameters()]

    def update(self, model):
        self.num_updates += 1
        for average, value in zip(self.shadow_params, model.parameters(), strict=True):
            average.lerp_(value.detach(), 1 - min(self.decay, self.num_updates / (10 + self.num_updates)))


class Shadow:
    def __init__(self, model):
        self.decay, self.shadow = 0.999, {name: p.detach().clone() for name, p in model.named_parameters()}

    def update(self, model):
        for name, value in model.named_parameters():
            self.shadow[name].lerp_(value.detach(), 1 - self.decay)


class LucidrainsLike(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.beta, self.online_model, self.ema_model = 0.999, model, copy.deepcopy(model)
        self.register_buffer("initted", torch.tensor(False))
        self.register_buffer("step", torch.tensor(0))

    def update(self, model):
        self.step += 1
        for average, value in zip(self.ema_model.parameters(), model.parameters(), strict=True):
            average.data.lerp_(value.data, (1 - self.beta) if self.initted else 1.0)
        self.initted.fill_(True)


def torch_average(model):
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
    average.update = average.update_parameters
    return average


KINDS = {
    "torch": (torch_average, lambda average: average.module[0].weight),
    "timm": (TimmLike, lambda average: average.module[0].weight),
    "list": (ShadowParams, lambda average: average.shadow_params[0]),
    "dict": (Shadow, lambda average: average.shadow["0.weight"]),
    "lucidrains": (LucidrainsLike, lambda average: average.ema_model[0].weight),
}
for kind, library, name in (
    (TimmLike, "timm.utils.model_ema", "ModelEmaV3"),
    (ShadowParams, "torch_ema.ema", "ExponentialMovingAverage"),
    (LucidrainsLike, "ema_pytorch.ema_pytorch", "EMA"),
):
    kind.__module__, kind.__name__ = library, name  # by which they are known


class Holder(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.net = network()
        self.average = make(self.net)


def is_near(average, weight):
    return float((average - weight).norm().detach()) < 0.01 * float(weight.norm().detach())


@pytest.mark.filterwarnings("ignore:the change leaves out")
@pytest.mark.parametrize("held", [True, False], ids=["held by the model", "given"])
@pytest.mark.parametrize("event", [FIRE(), FullReset(fresh_seed=1)])
@pytest.mark.parametrize("kind", KINDS)
def test_an_average_begins_again(kind, event, held):
    if held and kind == "dict":
        pytest.skip("of no known class")
    make, weight_in = KINDS[kind]
    holder = Holder(make)
    net, average = holder.net, holder.average
    model = holder if held else net
    optimizer = torch.optim.Adam(model.parameters())  # also holds the averages, as an optimizer of all parameters does
    for _ in range(50):
        average.update(net)
    old = net[0].weight.detach().clone()
    kept = average.shadow if kind == "dict" else average
    event(model, Loop(optimizer, averages=() if held else kept))
    assert not is_near(old, net[0].weight)
    average.update(net)
    assert is_near(weight_in(average), net[0].weight)


@pytest.mark.parametrize("make", [copy.deepcopy, lambda net: [p.detach().clone() for p in net.parameters()]])
def test_a_copy_of_any_kind_that_is_given_begins_again(make):
    net = network()
    average = make(net)
    fire_(net, averages=average)
    first = average[0] if isinstance(average, list) else average[0].weight
    assert torch.equal(first, net[0].weight)


def test_which_of_two_trained_twins_is_averaged_is_not_guessed():
    model = nn.ModuleDict({"one": network(), "two": network()})
    average = AveragedModel(model["two"])
    with pytest.raises(ValueError, match=r"names and shapes of 2 parts of ModuleDict.*: act on this part alone"):
        fire_(model, averages=average)
    fire_(model["two"], averages=average)
    assert torch.equal(average.module[0].weight, model["two"][0].weight)


UNITS = pytest.mark.parametrize(
    "method", [ReDo(), ContinualBackprop(1.0, maturity=0), SelfNormalizedReset(max_silence=64)], ids=lambda m: m.name
)


def with_dormant_units():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16))
    model[0].bias.data[:8] = -100.0
    return model, torch.randn(32, 8)


@UNITS
def test_averages_take_the_units_that_are_reset_and_no_others(method):
    model, x = with_dormant_units()
    average, optimizer = AveragedModel(model), torch.optim.Adam(model.parameters(), lr=0.05)
    loop = Loop(optimizer, forward=lambda: model(x), averages=average)
    act = partial(method, model, loop) if isinstance(method, EventMethod) else method.attach(model, loop).after_step
    for number in range(4):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        average.update_parameters(model)
        if isinstance(method, EventMethod) and number < 2:
            continue
        old = model[0].weight.detach().clone()
        act()
        if (chosen := (model[0].weight != old).any(1)).any():
            break
    assert chosen.any() and average.n_averaged > 0
    assert torch.equal(average.module[0].weight[chosen], model[0].weight[chosen])
    assert not average.module[2].weight[:, chosen].any()
    if not chosen.all():
        assert not torch.equal(average.module[0].weight[~chosen], model[0].weight[~chosen])


def test_the_lost_output_of_units_is_added_to_averaged_biases():
    model, x = with_dormant_units()
    average = AveragedModel(model)
    attached = ContinualBackprop(1.0, maturity=0).attach(model, Loop(forward=lambda: model(x), averages=average))
    with torch.no_grad():
        average.module[2].bias.add_(1.0)
    model(x)
    before = model[2].bias.detach().clone(), average.module[2].bias.detach().clone()
    attached.after_step()
    added = model[2].bias - before[0], average.module[2].bias - before[1]
    assert added[0].abs().max() > 0.01
    torch.testing.assert_close(*added)


@pytest.mark.parametrize("method", [ContinualBackprop(1.0, maturity=0), SelfNormalizedReset(max_silence=64)])
def test_units_are_reset_in_a_hook_of_the_optimizer_that_is_not_the_last(method):
    """As the callbacks of Hugging Face and Stable-Baselines3 do, also of several methods."""
    model, x = with_dormant_units()
    optimizer = torch.optim.Adam(model.parameters())
    attached = method.attach(model, Loop(optimizer, forward=lambda: model(x)))
    optimizer.register_step_post_hook(lambda *_: attached.after_step())
    optimizer.register_step_post_hook(lambda *_: None)
    for _ in range(4):
        model(x).square().mean().backward()
        optimizer.step()
    assert attached.num_reset > 0


def test_units_that_are_reset_leave_averages_alone():
    net = network()
    average = AveragedModel(net)
    average.update_parameters(net)
    ReDo(threshold=9.0)(net, Loop(forward=lambda: net(torch.randn(8, 8)), averages=average))
    assert average.n_averaged == 1


def test_other_things_are_no_averages():
    with pytest.raises(TypeError, match=r"`averages` must be averages of weights.*got int"):
        fire_(network(), averages=3)
    with pytest.raises(ValueError, match="does not have the names and shapes of the model"):
        fire_(network(), averages=nn.Linear(3, 3))


def test_a_model_without_copies_is_not_told_of_them():
    net = network()
    fire_(net, optimizers=torch.optim.Adam(net.parameters()))  # a warning would be an error


def test_the_frozen_original_of_a_saved_module_of_peft_is_not_taken_for_an_average():
    head = nn.Linear(8, 3)
    saved = nn.ModuleDict({"default": copy.deepcopy(head)})
    net = nn.ModuleDict(
        {"head": nn.ModuleDict({"original_module": head.requires_grad_(False), "modules_to_save": saved})}
    )
    assert fire_(net, optimizers=torch.optim.Adam(saved.parameters()))["sfe"] > 0  # a warning would be an error


def test_an_injection_wraps_the_head_of_an_average_and_leaves_its_output():
    model, x = network(), torch.randn(5, 8)
    average = AveragedModel(model).eval()
    average.update_parameters(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1
    before = average(x)
    PlasticityInjection("3")(model, Loop(torch.optim.Adam(model.parameters()), averages=average))
    torch.testing.assert_close(average(x), before)
    assert torch.equal(average.module[3].trained.weight, model[3].trained.weight)
    assert average.n_averaged == 1  # it continues


@pytest.mark.filterwarnings("ignore:the change leaves")
@pytest.mark.parametrize("frozen", [True, False], ids=["frozen", "in no optimizer"])
def test_an_average_follows_the_trained_network_beside_a_target_that_is_nearer(frozen):
    """The target was copied when the average was made, and both lag behind."""
    model = nn.ModuleDict({"q": network(), "target": network().requires_grad_(not frozen)})
    average = AveragedModel(model["q"], multi_avg_fn=get_ema_multi_avg_fn(0.999))
    with torch.no_grad():
        for parameter in model["q"].parameters():
            parameter += 0.1
    fire_(model, optimizers=torch.optim.Adam(model["q"].parameters()), averages=average)
    assert all(map(torch.equal, average.module.parameters(), model["q"].parameters()))
