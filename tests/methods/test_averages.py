"""Averages of weights begin again from the new weights, and what may be one is named."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from lightning_fire import FIRE, FullReset, Loop, PlasticityInjection, ReDo, fire_
from lightning_fire.methods.base.averages import averages_in


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


class Buffers(nn.Module):
    """As `LitEma` of latent diffusion."""

    def __init__(self, model):
        super().__init__()
        self.m_name2s_name = {name: name.replace(".", "") for name, _ in model.named_parameters()}
        self.register_buffer("decay", torch.tensor(0.999))
        self.register_buffer("num_updates", torch.tensor(-1))
        for name, value in model.named_parameters():
            self.register_buffer(self.m_name2s_name[name], value.detach().clone())

    def update(self, model):
        for name, value in model.named_parameters():
            self.get_buffer(self.m_name2s_name[name]).lerp_(value.detach(), 1e-3)


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
    "buffers": (Buffers, lambda average: average.get_buffer("0weight")),
}


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
    make, weight_in = KINDS[kind]
    holder = Holder(make)
    net, average = holder.net, holder.average
    model = holder if held else net
    optimizer = torch.optim.Adam(model.parameters())  # also holds the averages, as an optimizer of all parameters does
    for _ in range(50):
        average.update(net)
    old = net[0].weight.detach().clone()
    event(model, Loop(optimizer, averages=() if held else average))
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


def test_of_twins_the_nearest_is_averaged():
    model = nn.ModuleDict({"one": network(), "two": network()})
    for parameter in model["two"].parameters():
        parameter.data.add_(1.0)
    average = AveragedModel(model["two"])
    fire_(model, averages=average)
    assert torch.equal(average.module[0].weight, model["two"][0].weight)


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


class WithCopy(Holder):
    """An average of its own, in buffers, attributes or a copy, for which no class is known."""

    def __init__(self, kind):
        super().__init__(lambda net: copy.deepcopy(net) if kind == "copy" else None)
        for number, parameter in enumerate(self.net.parameters() if kind == "buffers" else ()):
            self.register_buffer(f"ema_{number}", parameter.detach().clone())
        if kind == "attribute":
            self.mine = {name: p.detach().clone() for name, p in self.net.named_parameters()}


@pytest.mark.filterwarnings("ignore:the change leaves out")
@pytest.mark.parametrize(("kind", "name"), [("copy", "average"), ("buffers", "ema_0"), ("attribute", "mine")])
def test_what_may_be_an_average_is_named(kind, name):
    model = WithCopy(kind)
    optimizer = torch.optim.Adam(model.net.parameters())
    with pytest.warns(UserWarning, match=rf"does not restart {name}.* it keeps the old ones"):
        fire_(model, optimizers=optimizer)


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


def test_a_part_of_torchscript_is_no_average():
    class Frozen(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = torch.jit.trace(nn.Linear(4, 4), torch.zeros(2, 4))
            self.head = nn.Linear(4, 4)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = Frozen()
        assert not averages_in([model])
        fire_(model)
