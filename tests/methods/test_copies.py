"""Which tensors of optimizers are copies of weights, and how they and averages follow units that are reset."""

import copy
from functools import partial

import pytest
import torch
from test_verify import Masters, OwnMasters, X, network, step
from torch import nn
from torch.optim.swa_utils import AveragedModel

from lightning_fire import ContinualBackprop, EventMethod, Loop, ReDo, SelfNormalizedReset, fire_


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_an_equal_model_in_an_optimizer_of_its_own_is_no_copy(dtype):
    model, ours = network(dtype), network(dtype)
    other = copy.deepcopy(model).float()  # as the second critic, or a model in another precision
    optimizers = [torch.optim.Adam(each.parameters(), lr=0.0) for each in (model, ours, other)]
    for each, optimizer in zip((model, ours, other), optimizers, strict=True):
        step(each, optimizer)
    before = [p.detach().clone() for p in [*ours.parameters(), *other.parameters()]]
    fire_(model, optimizers=optimizers)
    assert not torch.equal(model[0].weight, ours[0].weight)
    assert all(map(torch.equal, before, [*ours.parameters(), *other.parameters()]))
    assert all(optimizer.state[p] for optimizer in optimizers[1:] for p in optimizer.param_groups[0]["params"])
    assert not optimizers[0].state.get(model[0].weight)


def net():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16)).bfloat16()
    model[0].bias.data[:8] = -100.0  # dormant
    return model


def reset_units(method, model, optimizer, averages=()):
    """Train until some units are reset; return which ones, bool (units,)."""
    loop = Loop(optimizer, forward=lambda: model(X.bfloat16()), averages=averages)
    attached = method if isinstance(method, EventMethod) else method.attach(model, loop)
    for _ in range(4):
        step(model, optimizer)
        for average in averages:
            average.update_parameters(model)
        old = model[0].weight.detach().clone()
        attached(model, loop) if attached is method else attached.after_step()
        if not torch.equal(old, model[0].weight):
            return (model[0].weight != old).any(1)
    raise AssertionError("no unit has been reset")


UNITS = pytest.mark.parametrize(
    "method", [ReDo(), ContinualBackprop(1.0, maturity=0), SelfNormalizedReset(max_silence=64)], ids=lambda m: m.name
)


@UNITS
@pytest.mark.parametrize("make", [partial(Masters, kept="groups"), OwnMasters], ids=["held", "alone"])
def test_masters_of_units_that_are_reset_follow_and_others_stay(method, make):
    model = net()
    optimizer = make(model.parameters())
    kept = getattr(optimizer, "fp32_from_fp16_groups", None)
    first, _, second, bias = kept[0] if kept else optimizer.param_groups[0]["params"]
    chosen = reset_units(method, model, optimizer)
    assert torch.equal(first[chosen], model[0].weight[chosen].float())
    assert not second[:, chosen].any()
    if not chosen.all():
        assert not torch.equal(first[~chosen], model[0].weight[~chosen].float())  # as precise as before
    if not kept:
        assert not optimizer.state[first]["exp_avg"][chosen].any()
    assert torch.equal(bias.bfloat16(), model[2].bias)  # to which continual backprop adds the lost output
    step(model, optimizer, 3)  # verified


@UNITS
def test_averages_take_the_units_that_are_reset_and_no_others(method):
    model = net()
    average = AveragedModel(model)
    average.update_parameters(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    chosen = reset_units(method, model, optimizer, [average])
    assert average.n_averaged > 0
    assert torch.equal(average.module[0].weight[chosen], model[0].weight[chosen])
    assert not average.module[2].weight[:, chosen].any()
    if not chosen.all():
        assert not torch.equal(average.module[0].weight[~chosen], model[0].weight[~chosen])


@UNITS
def test_units_that_come_back_are_an_error(method):
    model = net()
    optimizer = Masters(model.parameters())
    step(model, optimizer)
    reset_units(method, model, optimizer)
    with pytest.raises(RuntimeError, match=r"0\.weight.* back at their old values.*float32 master weights"):
        step(model, optimizer)


def test_the_lost_output_of_units_is_added_to_copies_of_biases_which_stay_as_precise():
    model = net()
    model[0].bias.data.zero_()
    average = AveragedModel(model)
    optimizer = OwnMasters(model.parameters())
    loop = Loop(optimizer, forward=lambda: model(X.bfloat16()), averages=average)
    attached = ContinualBackprop(1.0, maturity=0).attach(model, loop)
    step(model, optimizer, 4)
    biases = model[2].bias, optimizer.param_groups[0]["params"][3], average.module[2].bias
    before = [bias.detach().float().clone() for bias in biases]
    attached.after_step()
    added, to_master, to_average = (bias.detach().float() - old for bias, old in zip(biases, before, strict=True))
    assert attached.num_reset == 32
    assert added.abs().max() > 0.01
    for each in to_master, to_average:
        torch.testing.assert_close(each, added, rtol=0.02, atol=2e-3)
    assert torch.equal(biases[1].bfloat16(), model[2].bias)
    assert not torch.equal(biases[1], model[2].bias.float())


@pytest.mark.parametrize("method", [ContinualBackprop(1.0, maturity=0), SelfNormalizedReset(max_silence=64)])
def test_units_are_reset_in_a_hook_of_the_optimizer_that_is_not_the_last(method):
    """As the callbacks of Hugging Face and Stable-Baselines3 do, also of several methods."""
    model = net().float()
    optimizer = torch.optim.Adam(model.parameters())
    attached = method.attach(model, Loop(optimizer, forward=lambda: model(X)))
    optimizer.register_step_post_hook(lambda *_: attached.after_step())
    optimizer.register_step_post_hook(lambda *_: None)
    step(model, optimizer, 4)
    assert attached.num_reset > 0
