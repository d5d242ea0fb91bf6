"""Weights and optimizer state of an earlier training, loaded into another module."""

import pytest
import torch
from small_training import assert_same_weights, state_of
from torch import nn

from lightning_fire.checkpoints.earlier_training import EarlierTraining, digest_of, read_earlier_training
from lightning_fire.methods import wrap_heads


def network(width=5):
    return nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width), nn.Linear(width, 2))


class Wrapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = network()


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("old", "new"), [(network, network), (network, Wrapped), (Wrapped, network)])
def test_weights_find_their_names_with_and_without_a_prefix(old, new, compiled, tmp_path):
    left = old()
    state = left.state_dict()
    torch.save({f"_orig_mod.{name}": t for name, t in state.items()} if compiled else state, tmp_path / "old.pt")
    module = new()
    read_earlier_training(tmp_path / "old.pt").load_weights(module)
    for mine, theirs in zip(module.state_dict().values(), left.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight


def test_one_of_tied_weights_is_enough():
    module, given = Tied(), torch.rand(7, 4)
    EarlierTraining("old", {"embedding.weight": given}).load_weights(module)
    assert torch.equal(module.head.weight, given)


@pytest.mark.parametrize("injections", [0, 1, 2])
def test_a_wrapped_head_takes_weights_of_before_and_after_injections(injections):
    left, inputs = network().eval(), torch.rand(4, 3)
    if injections:
        for seed in range(injections):
            wrap_heads(left, ["2"])[0].inject(seed)
        left[2].trained.weight.data.add_(1.0)
    module = network().eval()
    wrap_heads(module, ["2"])[0].inject(9)
    EarlierTraining("old", left.state_dict()).load_weights(module)
    assert len(module[2].frozen) == injections and torch.equal(module(inputs), left(inputs))
    if injections:
        with pytest.raises(
            ValueError, match=r"also holds .*PlasticityInjection: call wrap_heads\(model, \['2'\]\) before"
        ):
            EarlierTraining("old", left.state_dict()).load_weights(network())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("2.bias"), "it lacks 2.bias"),
        (lambda state: state.update(extra=torch.ones(1)), "it also holds extra"),
        (
            lambda state: state.update({"0.weight": torch.ones(4, 3)}),
            r"0.weight is \(4, 3\) in it, and \(5, 3\) in the",
        ),
    ],
)
def test_other_names_and_shapes_are_an_error_and_change_nothing(change, message):
    module, state = network(), dict(network().state_dict())
    before = state_of(module)
    change(state)
    with pytest.raises(ValueError, match=f"last.ckpt does not fit Sequential: {message}"):
        EarlierTraining("last.ckpt", state).load_weights(module)
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


def trained(optimizer, **options):
    model = network()
    stepper = optimizer(model.parameters(), **options)
    for _ in range(3):
        model(torch.rand(4, 3)).square().mean().backward()
        stepper.step()
    return model, stepper


def test_optimizers_continue_with_their_state_at_their_own_rate():
    model, old = trained(torch.optim.Adam, lr=0.5)
    other = network()
    other.load_state_dict(model.state_dict())
    new = torch.optim.Adam(other.parameters(), lr=0.1)
    assert EarlierTraining("old", {}, [old.state_dict()]).load_optimizer_states([new]) == ""
    old.param_groups[0]["lr"] = 0.1
    for module, optimizer in ((model, old), (other, new)):
        optimizer.zero_grad()
        module(torch.ones(4, 3)).square().mean().backward()
        optimizer.step()
    assert_same_weights(model, other)
    assert old.state_dict()["state"][0]["step"] == 4


@pytest.mark.parametrize(
    ("states", "reason"),
    [
        (lambda: [], "old holds none"),
        (lambda: 2 * [trained(torch.optim.Adam)[1].state_dict()], "old holds the state of 2 optimizers, not of 1"),
        (
            lambda: [trained(torch.optim.SGD, lr=0.1)[1].state_dict()],
            "another kind of optimizer than Adam, without betas",
        ),
        (lambda: [torch.optim.Adam(nn.Linear(3, 2).parameters()).state_dict()], "has other groups of parameters"),
    ],
)
def test_optimizer_state_that_does_not_fit_is_left_with_a_reason(states, reason):
    new = torch.optim.Adam(network().parameters())
    assert reason in EarlierTraining("old", {}, states()).load_optimizer_states([new])
    assert not new.state


def test_optimizer_state_of_another_width_is_left():
    new = torch.optim.Adam(network(width=6).parameters())
    state = trained(torch.optim.Adam)[1].state_dict()
    assert "exp_avg of old has another shape" in EarlierTraining("old", {}, [state]).load_optimizer_states([new])
    assert not new.state


def test_a_safetensors_file_and_a_folder_are_read(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    model = network()
    safetensors.save_file(model.state_dict(), tmp_path / "model.safetensors")
    for path in (tmp_path, tmp_path / "model.safetensors"):
        other = network()
        read_earlier_training(path).load_weights(other)
        assert_same_weights(model, other)
    before = digest_of(tmp_path)
    safetensors.save_file(network().state_dict(), tmp_path / "model.safetensors")
    assert digest_of(tmp_path) != before


def test_a_file_with_several_networks_says_what_to_save(tmp_path):
    torch.save({"actor": network().state_dict(), "critic": network().state_dict()}, tmp_path / "both.pt")
    with pytest.raises(ValueError, match=r"holds 2 networks: .*: save the weights alone, torch.save\(model.state_dict"):
        read_earlier_training(tmp_path / "both.pt")
