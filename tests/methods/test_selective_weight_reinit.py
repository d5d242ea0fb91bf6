"""`SelectiveWeightReinit` against a slow loop over weights, on plain models and through a real fit."""

import copy

import lightning.pytorch as pl
import pytest
import reference
import torch
from small_training import fitted, state_of
from torch import nn
from torch.nn.functional import cross_entropy

from lightning_fire import Parameters, PlasticityCallback, SelectiveWeightReinit
from lightning_fire.methods import Loop
from lightning_fire.methods.initial_values import drawn_by, seed_of_draw

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
}


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


def batches(number):
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(6, 6, generator=generator), torch.arange(6) % 3) for _ in range(number)]


def trained(method, optimizer, steps=12):
    model = network()
    stepping = OPTIMIZERS[optimizer](model.parameters())
    attached = method.attach(model, Loop(stepping))
    for x, y in batches(steps):
        stepping.zero_grad()
        cross_entropy(model(x), y).backward()
        attached.before_step(stepping)
        stepping.step()
        stepping.zero_grad()  # the gradient is gone when it is used
        attached.after_step()
    return model, stepping, attached


def drawn(model, seed, number):
    """The new values of an event, layer by layer."""
    layers = [(name, layer) for name, layer in model.named_children() if len(list(layer.parameters()))]
    draws = {name: drawn_by(layer, seed_of_draw(seed, number) + i) for i, (name, layer) in enumerate(layers)}
    return {f"{name}.{leaf}": value for name, own in draws.items() for leaf, value in own.items()}


def by_a_slow_loop(method, optimizer, steps=12):
    """The weight of each parameter with the least utility replaced, one after the other; return also how many."""
    model, replaced = network(), 0
    stepping = OPTIMIZERS[optimizer](model.parameters())
    for step, (x, y) in enumerate(batches(steps), 1):
        stepping.zero_grad()
        cross_entropy(model(x), y).backward()
        stepping.step()
        if step % method.every:
            continue
        draw = drawn(model, method.seed, step // method.every)
        for name, p in model.named_parameters():
            gradient = p.grad if method.utility == "gradient" else None
            number = round(method.factor * p.numel()) if method.pruning == "proportional" else None
            for i in reference.least_useful_weights(p.detach(), gradient, method.factor, number):
                constant = 1.0 if name == "1.weight" else 0.0  # the scale of LayerNorm
                with torch.no_grad():
                    p.view(-1)[i] = draw[name].view(-1)[i] if method.redraw == "resample" else constant
                replaced += 1
    return model, replaced


METHODS = [
    SelectiveWeightReinit(0.3, every=3, seed=4),
    SelectiveWeightReinit(0.3, every=4, utility="magnitude"),
    SelectiveWeightReinit(0.3, every=1, redraw="mean"),
    SelectiveWeightReinit(1.0, every=5, pruning="proportional"),  # all of them
]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_a_training_equals_that_of_a_slow_loop(method, optimizer):
    (model, _, attached), (expected, replaced) = trained(method, optimizer), by_a_slow_loop(method, optimizer)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), expected.parameters(), strict=True))
    assert attached.metrics() == {"weights": float(replaced)} and replaced > 20


def test_a_fraction_of_a_weight_is_a_chance():
    """0.25 of a bias with 3 weights are none or one of them: 0.75 on average."""
    model = nn.Linear(2, 3)
    method = SelectiveWeightReinit(0.25, 1, "magnitude", "proportional", where=Parameters(include=["bias"]))
    attached = method.attach(model)
    for _ in range(400):
        attached.after_step()
    assert attached.metrics()["weights"] / 400 == pytest.approx(0.75, abs=0.06)


class Ramp(nn.Module):
    """A layer whose initial values are known and not all equal."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(3))
        self.reset_parameters()

    def reset_parameters(self):
        self.weight.data.copy_(torch.arange(3.0))


LAYERS = {
    "one bias": lambda: nn.Linear(5, 1),
    "one weight": lambda: nn.Linear(1, 1),
    "a convolution of one number": lambda: nn.Conv2d(1, 1, 1),
    "a scale of one number": lambda: nn.LayerNorm(1),
    "a number without a dimension": lambda: nn.PReLU(),
    "known values": Ramp,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", LAYERS)
def test_the_mean_of_a_distribution_is_that_of_many_draws(name, dtype):
    torch.manual_seed(0)
    model = nn.Sequential(LAYERS[name]().to(dtype))
    layers = [LAYERS[name]() for _ in range(2000)]
    means = [torch.stack(draws).mean(0) for draws in zip(*(layer.parameters() for layer in layers), strict=True)]
    for seed in range(20):
        attached = SelectiveWeightReinit(1.0, 1, "magnitude", "proportional", "mean", seed=seed).attach(model)
        for p in model.parameters():
            p.data.fill_(7)
        attached.after_step()
        for p, mean in zip(model.parameters(), means, strict=True):
            torch.testing.assert_close(p.float(), mean, rtol=0, atol=0.06)


def test_it_acts_behind_a_normalization_layer_and_leaves_other_weights_to_the_bit():
    method = SelectiveWeightReinit(0.3, every=12)
    before, (after, *_) = trained(SelectiveWeightReinit(0.3, every=99), "sgd")[0], trained(method, "sgd")
    draw = drawn(before, 0, 1)
    for name in ("0.weight", "1.weight", "3.weight", "5.bias"):
        old, new = before.get_parameter(name), after.get_parameter(name)
        assert torch.equal(new[new != old], draw[name][new != old])
        assert int((new == draw[name]).sum()) > 0


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_entries_of_the_optimizer_state_stay_or_begin_again(optimizer):
    kept, touched = (
        trained(SelectiveWeightReinit(0.3, every=12, optimizer_state=state), optimizer) for state in ("keep", "touched")
    )
    old = trained(SelectiveWeightReinit(0.3, every=99), optimizer)
    for mine, other, untouched in zip(*(each[0].parameters() for each in (kept, touched, old)), strict=True):
        assert torch.equal(mine, other)
        new = mine != untouched
        for key, value in kept[1].state[mine].items():
            assert torch.equal(value, old[1].state[untouched][key])
            if value.shape == mine.shape:
                begun = touched[1].state[other][key]
                assert not begun[new].any() and torch.equal(begun[~new], value[~new])


def test_averages_and_other_copies_get_the_same_new_weights():
    model = network()
    average = copy.deepcopy(model)
    before = [p.detach().clone() for p in average.parameters()]
    attached = SelectiveWeightReinit(0.5, 1, "magnitude").attach(model, Loop(averages=average))
    old = [p.detach().clone() for p in model.parameters()]
    with torch.no_grad():
        for p in average.parameters():
            p.add_(1.0)
    attached.after_step()
    for weight, copied, former, first in zip(model.parameters(), average.parameters(), old, before, strict=True):
        new = weight != former
        assert new.any() or weight.ndim == 1
        assert torch.equal(copied[new], weight[new])
        same = weight == former
        assert ((copied[same] == first[same] + 1) | (copied[same] == weight[same])).all()


def test_without_a_gradient_or_with_one_that_is_not_finite_nothing_changes():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    attached = SelectiveWeightReinit(0.9, every=1).attach(model, Loop(optimizer))
    before = state_of(model)
    cross_entropy(model(torch.ones(2, 6)), torch.arange(2)).backward()
    model[0].weight.grad[0, 0] = torch.inf  # as of a gradient scaler that skips the step
    model[3].weight.grad = None
    attached.before_step(optimizer)
    attached.after_step()
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert "5.weight" in changed and not changed & {"0.weight", "3.weight"}
    attached.before_step(torch.optim.SGD(nn.Linear(1, 1).parameters()))  # which trains none of them
    attached.after_step()
    assert {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])} == changed


def test_a_layer_that_cannot_draw_is_an_error_that_names_it():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale, self.layer = nn.Parameter(torch.ones(3)), nn.Linear(2, 2)

    with pytest.raises(ValueError, match=r"Scaled has parameters and no reset_parameters\(\), which draws the new"):
        SelectiveWeightReinit().attach(Scaled())
    SelectiveWeightReinit(where=Parameters(exclude=["scale"])).attach(Scaled())


class AfterEachStep(pl.Callback):
    """Keeps the state after each optimizer step; stands before or after the method."""

    def __init__(self):
        self.states = []

    def on_train_batch_end(self, trainer, pl_module, *args):
        self.states.append(state_of(pl_module))


def test_in_a_fit_it_acts_only_when_due_and_only_on_what_is_selected():
    before, after = AfterEachStep(), AfterEachStep()
    method = SelectiveWeightReinit(0.5, every=5, where=Parameters(include=["net.3"]))
    fitted(before, PlasticityCallback(method), after)
    assert len(after.states) == 24
    for step, (one, other) in enumerate(zip(before.states, after.states, strict=True), 1):
        changed = {name for name in one if not torch.equal(one[name], other[name])}
        assert changed <= {"net.3.weight", "net.3.bias"} if step % 5 == 0 else not changed
        assert step % 5 or "net.3.weight" in changed
