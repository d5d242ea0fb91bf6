"""`PlasticityInjection` through real fits: the output stays, gradients and weights are those of the definition."""

import copy

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from small_training import PlainModule, assert_same_weights, dataset, fitted, state_of
from torch import nn

from lightning_fire import Loop, PlasticityCallback, PlasticityInjection, ShrinkAndPerturb, wrap_heads
from lightning_fire.methods import InjectedHead

HEAD = "net.5"
INPUTS = dataset().tensors[0]


def head() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 3))


def test_the_output_is_that_of_the_definition():
    """Σₙ (h_θₙ − h_θ′ₙ) + h_θ′, with each of them built by itself."""
    plain = head()
    wrapper = InjectedHead(copy.deepcopy(plain))
    parts = []
    for number in range(3):
        parts.append((+1, copy.deepcopy(wrapper.trained)))
        before = wrapper(INPUTS)
        wrapper.inject(seed=10 + number)
        torch.testing.assert_close(wrapper(INPUTS), before, rtol=0, atol=1e-6 if number else 0)
        assert not torch.equal(wrapper.trained[0].weight, parts[-1][1][0].weight)
        parts.append((-1, copy.deepcopy(wrapper.trained)))
        with torch.no_grad():  # training moves it
            for parameter in wrapper.trained.parameters():
                parameter += 0.1 * torch.randn_like(parameter)
    expected = sum(sign * part(INPUTS) for sign, part in parts) + wrapper.trained(INPUTS)
    torch.testing.assert_close(wrapper(INPUTS), expected)


@pytest.mark.parametrize("told", [PlainModule, lambda: wrapped(PlainModule(), HEAD)])
def test_a_head_of_one_linear_layer_learns_as_before_which_is_told(told):
    """(W + W′ − W″) x has the outputs and the gradient of W x, step by step."""
    (sentence,) = PlasticityInjection(HEAD).check(told(), Loop())
    assert "on the function or gradients of 'net.5', one Linear layer" in sentence
    assert not PlasticityInjection("net").check(told(), Loop())
    plain = nn.Linear(6, 3).double()
    injected = InjectedHead(copy.deepcopy(plain))
    optimizers = [torch.optim.Adam(head.parameters(), 0.1) for head in (plain, injected)]
    x = INPUTS.flatten(1)[:, :6].double()
    for step in range(6):
        if step in (2, 4):
            injected.inject(step)
        torch.testing.assert_close(injected(x), plain(x))
        for head, optimizer in zip((plain, injected), optimizers, strict=True):
            optimizer.zero_grad()
            head(x).square().sum().backward()
            optimizer.step()


def wrapped(module, name):
    wrap_heads(module, [name])
    return module


def test_gradients_reach_the_inputs_through_all_of_it_and_only_the_new_head():
    wrapper = InjectedHead(head())
    old = copy.deepcopy(wrapper.trained)
    wrapper.inject(0)
    x = INPUTS.clone().requires_grad_()
    y = INPUTS.clone().requires_grad_()
    wrapper(x).square().sum().backward()
    old(y).square().sum().backward()
    torch.testing.assert_close(x.grad, y.grad)  # the two new heads cancel
    assert all(parameter.grad is not None for parameter in wrapper.trained.parameters())
    assert len(list(wrapper.parameters())) == len(list(old.parameters()))


def test_new_weights_are_of_the_seed_and_leave_the_random_state_alone():
    one, two = InjectedHead(head()), InjectedHead(head())
    state = torch.get_rng_state()
    one.inject(3)
    two.inject(3)
    assert torch.equal(torch.get_rng_state(), state)
    assert_same_weights(one.trained, two.trained)
    two.inject(4)
    assert not torch.equal(one.trained[0].weight, two.trained[0].weight)


class TwoOutputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 1), nn.Linear(6, 2)

    def named_twice(self):
        return 2

    def forward(self, x, *, scale):
        return {"a": scale * self.a(x), "b": (self.b(x),)}


def test_heads_with_several_inputs_and_outputs():
    wrapper = InjectedHead(TwoOutputs())
    before = wrapper(INPUTS, scale=2.0)
    wrapper.inject(0)
    after = wrapper(INPUTS, scale=2.0)
    assert torch.equal(after["a"], before["a"])
    assert torch.equal(after["b"][0], before["b"][0])
    assert wrapper.a.out_features == 1  # what it lacks is the head's
    with pytest.raises(AttributeError, match="nothing"):
        wrapper.nothing  # noqa: B018
    with pytest.raises(AttributeError, match=r"named_twice\(\) of an injected head would leave the frozen copies out"):
        wrapper.named_twice()


class Remembers(PlasticityCallback):
    def act(self, trainer, pl_module, clock):
        pl_module.eval()
        before, state = pl_module.net(INPUTS), state_of(pl_module)
        moments = dict(trainer.optimizers[0].state)
        values = super().act(trainer, pl_module, clock)
        self.seen = [*getattr(self, "seen", []), (before, pl_module.net(INPUTS), state, state_of(pl_module))]
        self.moments = moments, dict(trainer.optimizers[0].state)
        pl_module.train()
        return values


def test_an_event_changes_the_head_but_not_its_output():
    callback = Remembers(PlasticityInjection(HEAD))
    module = fitted(callback)
    assert len(callback.seen) == 2
    for before, after, state, new_state in callback.seen:
        torch.testing.assert_close(after, before, rtol=0, atol=1e-6)
        for name, tensor in state.items():
            assert torch.equal(tensor, new_state[name]) == (not name.startswith(f"{HEAD}.trained.")), name
    assert len(module.net[5].frozen) == len(module.net[5].taken_away) == 2
    assert not torch.equal(*(head.weight for head in module.net[5].taken_away))
    assert sum(p.numel() for p in module.parameters()) == sum(p.numel() for p in PlainModule().parameters())
    had, has = callback.moments
    assert {id(p) for p in had} - {id(p) for p in has} == {id(p) for p in module.net[5].trained.parameters()}


def test_a_checkpoint_loads_elsewhere_after_wrapping(tmp_path):
    save = ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1, every_n_epochs=1, save_on_train_epoch_end=True)
    whole = fitted(PlasticityCallback(PlasticityInjection(HEAD)), save).eval()
    module = PlainModule().eval()
    wrap_heads(module, [HEAD])
    module.load_state_dict(torch.load(tmp_path / "epoch=5.ckpt", weights_only=True)["state_dict"])
    torch.testing.assert_close(module.net(INPUTS), whole.net(INPUTS))
    module.load_state_dict(torch.load(tmp_path / "epoch=0.ckpt", weights_only=True)["state_dict"])  # fewer again
    assert len(module.net[5].frozen) == 0


class WithTarget(PlainModule):
    """A target network, as Q-learning has it."""

    def __init__(self):
        super().__init__()
        self.target = copy.deepcopy(self.net).requires_grad_(False)
        with torch.no_grad():
            for parameter in self.target.parameters():
                parameter += 0.1  # it lags behind


def test_the_target_does_not_jump_and_is_the_online_net_after_a_copy():
    module = WithTarget().eval()
    before = module.target(INPUTS)
    for wrapper in wrap_heads(module, [HEAD, "target.5"]):
        wrapper.inject(5)
    torch.testing.assert_close(module.target(INPUTS), before, rtol=0, atol=1e-6)
    assert_same_weights(module.target[5].taken_away[0], module.net[5].taken_away[0])
    assert not any(parameter.requires_grad for parameter in module.target.parameters())
    module.target.load_state_dict(module.net.state_dict())
    assert torch.equal(module.target(INPUTS), module.net(INPUTS))


class NoReset(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))


def tied() -> nn.Module:
    module = nn.ModuleDict({"embedding": nn.Embedding(3, 6), "head": nn.Linear(6, 3, bias=False)})
    module["head"].weight = module["embedding"].weight
    return module


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (tied(), "'head' shares a weight with another part of the model"),
        (nn.ModuleDict({"head": nn.ReLU()}), r"'head' \(ReLU\) has no parameters"),
        (nn.ModuleDict({"head": nn.LSTM(2, 2, 2, dropout=0.5)}), "'head' has LSTM: two copies"),
        (nn.ModuleDict({"head": PlainModule().net}), "'head' has BatchNorm1d: two copies"),
        (nn.ModuleDict({"head": NoReset()}), "re-initialized: NoReset has parameters and no reset_parameters"),
        (nn.ModuleDict({"other": nn.Linear(6, 3)}), "'head', which is not a part of ModuleDict .* there are: other"),
    ],
)
def test_heads_that_cannot_be_injected(module, message):
    with pytest.raises(ValueError, match=message):
        wrap_heads(module, ["head"])


@pytest.mark.parametrize("method", [PlasticityInjection(""), PlasticityInjection(HEAD, target="target")])
def test_a_head_or_target_that_is_missing_is_an_error_before_training(method):
    with pytest.raises(ValueError, match=f"'{method.target or ''}', which is not a part of PlainModule"):
        fitted(PlasticityCallback(method))


def test_a_head_that_changes_its_input_in_place():
    wrapper = InjectedHead(nn.Sequential(nn.SiLU(inplace=True), nn.Linear(6, 3)))
    before = wrapper(INPUTS.clone())
    wrapper.inject(1)
    assert torch.equal(wrapper(INPUTS.clone()), before)


def test_all_names_of_a_head_lead_to_the_wrapper():
    module = nn.Module()
    module.net = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3))
    module.head = module.net[1]
    wrap_heads(module, ["head"])
    assert module.head is module.net[1]
    assert isinstance(module.head, InjectedHead)


def test_loading_something_else_leaves_the_copies():
    module = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3))
    (wrapper,) = wrap_heads(module, ["1"])
    wrapper.inject(0)
    module.load_state_dict({"0.bias": torch.zeros(4)}, strict=False)
    assert len(wrapper.frozen) == 1


def test_a_checkpoint_from_before_wrapping_loads():
    plain = nn.Sequential(nn.Linear(6, 4), nn.Sequential(nn.Dropout(0.0), nn.Linear(4, 3)))  # which drops nothing
    module = copy.deepcopy(plain)
    (wrapper,) = wrap_heads(module, ["1"])
    wrapper.inject(0)
    module.load_state_dict(plain.state_dict())
    assert torch.equal(module(INPUTS), plain(INPUTS))


def test_beside_a_method_that_keeps_initial_values(tmp_path):
    build = lambda: [PlasticityCallback(PlasticityInjection(HEAD)), PlasticityCallback(ShrinkAndPerturb())]  # noqa: E731
    save = ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1, every_n_epochs=1, save_on_train_epoch_end=True)
    whole = fitted(*build(), save)
    assert_same_weights(fitted(*build(), seed=99, ckpt_path=tmp_path / "epoch=3.ckpt"), whole)
