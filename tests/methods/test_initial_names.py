"""Initial values that were taken before a model was compiled, and new values of layers that compute their weights."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune, spectral_norm, weight_norm

from lightning_fire import (
    FullReset,
    L2Init,
    Parameters,
    SelectiveWeightReinit,
    ShrinkAndPerturb,
    fresh_values,
    initial_values,
)
from lightning_fire.methods import Loop


@pytest.mark.parametrize("method", [FullReset(), ShrinkAndPerturb(1.0), L2Init(0.1)], ids=lambda method: method.name)
def test_they_belong_to_the_compiled_model_too(method):
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    initial = initial_values(model)
    for parameter in model.parameters():
        nn.init.constant_(parameter, 0.5)
    compiled, loop = torch.compile(model), Loop(initial=initial)
    if isinstance(method, L2Init):
        expected = 0.1 * sum((p - initial[name]).square().sum() for name, p in model.named_parameters())
        assert method.attach(compiled, loop).metrics()["penalty"] == pytest.approx(expected.item())
    else:
        method(compiled, loop)
        assert all(torch.equal(value, initial[name]) for name, value in model.state_dict().items())


COMPUTED = {
    "weight_norm": weight_norm,
    "spectral_norm": spectral_norm,
    "pruning": lambda layer: prune.l1_unstructured(layer, "weight", 0.5),
    "new weight_norm": parametrizations.weight_norm,
    "new spectral_norm": parametrizations.spectral_norm,
}


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
@pytest.mark.parametrize("computed", COMPUTED.values(), ids=COMPUTED)
def test_new_values_that_a_layer_would_lose_are_an_error(computed):
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), computed(nn.Linear(3, 2)))
    initial = initial_values(model)
    calls = {
        "`fresh_seed` is given, but 2": lambda: FullReset(fresh_seed=1)(model),
        "but 2": lambda: ShrinkAndPerturb(fresh_seed=1)(model),
        "2.* has parameters and no reset_parameters": lambda: SelectiveWeightReinit().attach(model),
    }
    for message, call in calls.items():
        with pytest.raises(ValueError, match=message):
            call()
    assert all(torch.equal(value, initial[name]) for name, value in model.state_dict().items() if name in initial)
    FullReset(fresh_seed=1, where=Parameters(include=["^0"]))(model)  # what can be drawn is drawn
    assert not torch.equal(model[0].weight, initial["0.weight"])
    with pytest.warns(UserWarning, match="fresh_values keeps the values of .*2.*: no reset_parameters"):
        fresh_values(model, 1)


def test_a_layer_that_cannot_draw_is_an_error_in_a_plain_call():
    model = nn.Sequential(nn.Linear(4, 3), nn.PReLU())
    model.token = nn.Parameter(torch.zeros(3))
    with pytest.raises(ValueError, match=r"Sequential has parameters and no reset_parameters\(\) that draws them"):
        FullReset(fresh_seed=1)(model)
    with pytest.warns(UserWarning, match="fresh_values keeps the values of Sequential: no reset_parameters"):
        assert not torch.equal(fresh_values(model, 1)["0.weight"], model[0].weight)


def test_attention_draws_its_new_values_as_a_new_one_does():
    model = nn.TransformerEncoderLayer(16, 2, 32)
    before, random = {name: value.clone() for name, value in model.state_dict().items()}, torch.get_rng_state()
    drawn = fresh_values(model, seed=0)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    weight, bound = drawn["self_attn.in_proj_weight"], (6 / (4 * 16)) ** 0.5  # Xavier's
    assert 0.9 * bound < weight.abs().max() <= bound and not torch.equal(weight, before["self_attn.in_proj_weight"])
    assert not drawn["self_attn.in_proj_bias"].any() and not drawn["self_attn.out_proj.bias"].any()
    nn.init.ones_(model.self_attn.in_proj_bias)
    FullReset(fresh_seed=0)(model)
    assert not model.self_attn.in_proj_bias.any()
    attached = SelectiveWeightReinit(0.5, 1, "magnitude", "proportional").attach(model)
    before = model.self_attn.in_proj_weight.detach().clone()
    attached.after_step()
    assert (model.self_attn.in_proj_weight != before).sum() == before.numel() / 2


@pytest.mark.filterwarnings("ignore:.*spectral_norm.* is deprecated")
@pytest.mark.parametrize("computed", [spectral_norm, parametrizations.spectral_norm], ids=["old", "new"])
def test_the_estimates_of_spectral_norm_that_shrink_and_perturb_leaves_are_named(computed):
    model = nn.Sequential(computed(nn.Linear(4, 3)))
    initial = initial_values(model)
    with pytest.warns(
        UserWarning, match=r"leaves the estimates of spectral_norm in 0\..*, which follow in the next pas"
    ):
        ShrinkAndPerturb()(model, Loop(initial=initial))


def test_names_of_tensors_may_have_dots_of_their_own():
    """As in the loss modules of torchrl."""

    class Dotted(nn.Module):
        def __init__(self):
            super().__init__()
            self._parameters["actor.weight"] = nn.Parameter(torch.ones(2, 2))
            self._buffers["target.weight"] = torch.ones(2, 2)

    model = nn.ModuleDict({"loss": Dotted()})
    initial = initial_values(model)
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data.zero_()
    assert str(FullReset()(model, Loop(initial=initial))).endswith("1 of 1 parameters")
    assert all(torch.equal(value, initial[name]) for name, value in model.state_dict().items())
