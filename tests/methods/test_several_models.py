"""Several models, such as an actor and a critic, change together at one event."""

import copy
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from lightning_fire import FullReset, Loop, PlasticityInjection, ReDo, ShrinkAndPerturb, fire_, full_reset_
from lightning_fire.methods import dash_, fresh_values, initial_values
from tests.support.methods_table import EVENTS

X = torch.randn(32, 8, generator=torch.Generator().manual_seed(0))


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 16))


def models():
    return [network(), nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))]


def losses_of(model):
    return [model(X).square().mean() for _ in range(2)]


def test_each_model_is_changed_as_alone_and_the_report_is_of_all():
    both = models()
    alone = copy.deepcopy(both)
    optimizer = torch.optim.Adam([parameter for model in both for parameter in model.parameters()])
    sum(model(X).square().mean() for model in both).backward()
    optimizer.step()
    for one, other in zip(alone, both, strict=True):
        one.load_state_dict(other.state_dict())
    report = fire_(both, optimizers=optimizer, scale="auto")
    reports = [fire_(model, scale="auto") for model in alone]
    assert all(map(torch.equal, nn.ModuleList(both).parameters(), nn.ModuleList(alone).parameters()))
    assert report["sfe"] == pytest.approx(sum(each["sfe"] for each in reports))
    assert list(report.layers["sfe"]) == ["0.0.weight", "0.3.weight", "1.0.weight", "1.2.weight"]
    values = [value for each in reports for value in each.layers["dfi_normalized_after"].values()]
    assert report["dfi_normalized_after"] == pytest.approx(sum(values) / 4)
    assert optimizer.state.keys() == {p for model in both for p in model.parameters() if p.ndim < 2}


def test_a_model_that_is_given_twice_is_changed_once():
    actor, critic = models()
    alone = copy.deepcopy(actor)
    once = ShrinkAndPerturb(0.5, fresh_seed=0)(alone)
    assert ShrinkAndPerturb(0.5, fresh_seed=0)([actor, actor])["sfe"] == once["sfe"]
    assert torch.equal(actor[0].weight, alone[0].weight)
    assert initial_values([critic, critic]).keys() == initial_values(critic).keys()


def test_a_model_that_fails_leaves_the_others_as_they_were():
    both = models()
    both[1][0].weight.data.fill_(float("nan"))
    before = both[0][0].weight.detach().clone()
    with pytest.raises(ValueError, match=r"model 1: NaN or Inf in 0\.weight"):
        fire_(both)
    assert torch.equal(both[0][0].weight, before)
    with pytest.raises(ValueError, match=r"model 0: the given optimizers \(Adam\) train no parameter"):
        fire_(models()[:1] + both[1:], optimizers=torch.optim.Adam(both[1].parameters(), lr=0.0))
    with pytest.raises(ValueError, match=r"model 0: .* train no parameter of Sequential"):
        fire_([*both, nn.Linear(2, 2)], optimizers=torch.optim.Adam(network().parameters()))
    with pytest.raises(TypeError, match=r"`model` must be a torch\.nn\.Module"):
        fire_([both[0], 3])


def test_values_to_reset_to_have_the_numbers_of_the_models():
    both = models()
    initial = initial_values(both)
    fire_(both)
    full_reset_(both, initial)
    assert all(torch.equal(value, initial[name]) for name, value in nn.ModuleList(both).state_dict().items())


def test_values_are_drawn_for_several_models():
    both = [network(), network()]
    drawn = fresh_values(both, seed=1)
    assert drawn.keys() == nn.ModuleList(both).state_dict().keys()
    assert not torch.equal(drawn["0.0.weight"], drawn["1.0.weight"])
    full_reset_(both, drawn)
    assert all(torch.equal(value, drawn[name]) for name, value in nn.ModuleList(both).state_dict().items())


def test_models_alike_are_not_drawn_alike():
    twins = [network(), network()]
    FullReset(fresh_seed=1)(twins)
    assert not torch.equal(twins[0][0].weight, twins[1][0].weight)


def test_losses_of_several_models_can_be_computed_for_each():
    both = models()

    def losses():
        return (sum(model(X).square().mean() for model in both) for _ in range(3))

    with pytest.raises(ValueError, match="with several models `losses` must be a function"):
        dash_(both, losses())
    report = dash_(both, losses)
    assert report["0.batches"] == report["1.batches"] == 3


@pytest.mark.parametrize("method", EVENTS.values(), ids=EVENTS)
def test_every_method_takes_a_list(method):
    if "head" in vars(method):
        method = type(method)(head="0")
    both = models()
    loop = Loop(
        torch.optim.Adam(nn.ModuleList(both).parameters()),
        forward=lambda: [model(X) for model in both],
        losses=lambda: (sum(model(X).square().mean() for model in both) for _ in range(2)),
        initial=initial_values(both),
    )
    for parameter in nn.ModuleList(both).parameters():
        parameter.data.mul_(1.5)
    before = copy.deepcopy(both)
    method(both, loop)
    for one, other in zip(both, before, strict=True):
        changed = not all(map(torch.equal, one.state_dict().values(), other.state_dict().values()))
        assert changed == method.changes_weights or len(one.state_dict()) > len(other.state_dict())
    assert loop.event == 2


@pytest.mark.parametrize("method", EVENTS.values(), ids=EVENTS)
def test_numbers_of_numpy_are_those_of_python(method):
    kinds = {int: np.int64, float: np.float32}
    numbers = {name: value for name, value in vars(method).items() if type(value) in kinds}
    if "head" in vars(method):
        method = replace(method, head="0", target=None)
    results = []
    for each in (method, replace(method, **{name: kinds[type(value)](value) for name, value in numbers.items()})):
        torch.manual_seed(0)
        (model,) = models()[1:]
        forward, losses = partial(model, X), partial(losses_of, model)
        optimizer = torch.optim.Adam(model.parameters())
        each(model, Loop(optimizer, forward=forward, losses=losses, initial=initial_values(model)))
        results.append(list(model.state_dict().values()))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("outputs", [3, 4], ids=["of different shapes", "alike"])
@pytest.mark.parametrize("together", [False, True], ids=["one of each", "one of both"])
def test_averages_take_the_units_of_their_own_model(outputs, together):
    both = [nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, number)) for number in (4, outputs)]
    for model in both:
        model[0].bias.data[:4] = -100.0  # dormant
    averages = [AveragedModel(nn.ModuleList(both))] if together else [AveragedModel(model) for model in both]
    report = ReDo()(both, Loop(forward=lambda: [model(X) for model in both], averages=averages))
    assert report["0.units"] == report["1.units"] == 4
    parts = averages[0].module if together else [average.module for average in averages]
    for model, average in zip(both, parts, strict=True):
        assert torch.equal(model[0].weight, average[0].weight)


def test_an_average_gets_the_new_head_of_its_own_model():
    both = [network(), network()]
    for parameter in both[1].parameters():
        parameter.data.add_(0.1)
    averages = [AveragedModel(model) for model in both]
    PlasticityInjection("3")(both, Loop(averages=averages))
    for model, average in zip(both, averages, strict=True):
        assert torch.equal(model[3].trained.weight, average.module[3].trained.weight)
        assert torch.equal(model(X), average(X))


def test_averages_restart_from_their_own_model_by_their_order():
    both = [network(), network()]
    for parameter in both[1].parameters():
        parameter.data.add_(0.1)
    averages = [AveragedModel(model) for model in both]
    fire_(both, averages=averages)
    for model, average in zip(both, averages, strict=True):
        assert all(map(torch.equal, average.module.parameters(), model.parameters()))
    with pytest.raises(ValueError, match=r"must be one average of each, in their order, or one of nn\.ModuleList"):
        fire_(both, averages=averages[:1])
