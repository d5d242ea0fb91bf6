"""SAC against torch's distributions, its targets and normalization, and that it learns."""

import pytest
import torch
from environments import Corridor, Slope
from replay_training import quiet_trainer, small_data, small_dqn, small_sac, transitions
from torch.distributions import Independent, Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform
from torchvision.ops import MLP

from lightning_fire import (
    AtFraction,
    FIRECallback,
    FullReset,
    Log,
    Parameters,
    PlasticityCallback,
    PlasticityInjection,
    Weights,
)
from lightning_fire.modules import SAC
from lightning_fire.modules.running_norm import RunningNorm
from lightning_fire.modules.sac import _floats
from lightning_fire.nets import SimBa


def distribution(module: SAC, observations: torch.Tensor) -> TransformedDistribution:
    mean, raw = module.actor(observations).chunk(2, -1)
    deviation = (-10 + 12 * (raw.tanh() + 1) / 2).exp()
    return Independent(TransformedDistribution(Normal(mean, deviation), TanhTransform(cache_size=1)), 1)


def test_actions_and_their_densities_are_those_of_a_squashed_normal():
    module, observations = small_sac(), torch.randn(30, 1)
    actions, log_probability = module._sample(observations, torch.Generator().manual_seed(0))
    expected = distribution(module, observations).log_prob(actions.clamp(-0.999999, 0.999999))
    inside = actions.abs().squeeze() < 0.99
    assert inside.sum() > 5
    assert torch.allclose(log_probability[inside], expected[inside], atol=1e-3)


def test_critic_targets_equal_a_loop_over_transitions():
    module = small_sac(discount=0.9, temperature=0.3)
    module.normalizer.observe(torch.randn(100, 1) * 3 + 1)
    batch = transitions(20, 1, torch.rand(20, 1))
    goals = module._targets(batch, torch.Generator().manual_seed(3))
    following = module.normalizer(batch.next_observations)
    actions, log_probability = module._sample(following, torch.Generator().manual_seed(3))
    for i in range(20):
        first, second = (critic(torch.cat([following[i], actions[i]])) for critic in module.target_critic.children())
        value = min(first, second) - 0.3 * log_probability[i]
        expected = batch.rewards[i] + (0 if batch.terminated[i] else 0.9 * value)
        assert torch.allclose(goals[i], expected, atol=1e-5)


def test_the_two_critics_differ_and_their_targets_do_not():
    module = small_sac()
    first, second = module.critic(torch.randn(5, 1), torch.randn(5, 1))
    assert not torch.allclose(first, second)
    for trained, target in zip(module.critic.parameters(), module.target_critic.parameters(), strict=True):
        assert torch.equal(trained, target) and not target.requires_grad


def test_a_critic_that_cannot_be_re_initialized_is_an_error():
    class Constant(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(2))

        def forward(self, inputs):
            return inputs * self.scale

    class Drawn(Constant):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.randn(2))

    SAC(MLP(1, [2]), torch.nn.Sequential(Constant(), MLP(2, [8, 1])), 1)
    with pytest.raises(ValueError, match=r"has the same 0\.scale: give the layer a reset_parameters"):
        SAC(MLP(1, [2]), torch.nn.Sequential(Drawn(), MLP(2, [8, 1])), 1)


def test_an_update_changes_each_part_and_moves_the_targets_by_tau(tmp_path):
    checked = []

    class Watched(SAC):
        def update(self, transitions, generator):
            before = {name: tensor.clone() for name, tensor in self.state_dict().items()}
            values = super().update(transitions, generator)
            after = self.state_dict()
            for name in before:
                if name.startswith("target_critic"):
                    trained = after[name.removeprefix("target_")]
                    assert torch.allclose(after[name], 0.9 * before[name] + 0.1 * trained, atol=1e-6)
                elif not name.startswith("normalizer"):
                    assert not torch.equal(before[name], after[name]), name
            checked.append(set(values))
            return values

    fit = quiet_trainer(tmp_path, 1)
    fit.fit(Watched(SimBa(1, 2, 8, 1, heads=2), SimBa(2, 1, 8, 1), 1, tau=0.1), small_data(Slope))
    assert len(checked) == 40
    assert {f"train/{name}" for name in checked[0]} <= set(fit.callback_metrics)


def test_normalises_by_all_observations():
    norm, inputs = RunningNorm(3), torch.randn(1000, 3) * torch.tensor([1.0, 5.0, 0.1]) + 7
    for part in inputs.split([1, 1, 13, 85, 900]):
        norm.observe(part)
    assert torch.allclose(norm.mean, inputs.mean(0), atol=1e-4)
    assert torch.allclose(norm.variance, inputs.var(0, correction=0), rtol=1e-3)
    assert torch.allclose(norm(inputs).std(0), torch.ones(3), atol=1e-2)
    fresh = RunningNorm(3)
    assert torch.allclose(fresh(inputs), inputs)


def test_observations_of_training_alone_count(tmp_path):
    module = small_sac()
    data = small_data(Slope)
    quiet_trainer(tmp_path, 2).fit(module, data)
    assert module.normalizer.count == 10 + 2 * 40


AFTER = {
    "fire": lambda: FIRECallback(
        AtFraction(0.5), where=Weights("sac", vectors=True), log=Log(curvature=False), optimizer_state="all"
    ),
    "full_reset": lambda: PlasticityCallback(FullReset(where=Parameters()), AtFraction(0.5), log=Log(curvature=False)),
}


@pytest.mark.parametrize("name", AFTER)
def test_right_after_an_event_targets_follow_and_the_normalisation_stays(tmp_path, name):
    module, seen = small_sac(), {}
    initial = {key: tensor.clone() for key, tensor in module.state_dict().items()}

    def look():
        seen.update({key: tensor.clone() for key, tensor in module.state_dict().items()})

    module.on_train_batch_start = lambda _, index: look() if (module.current_epoch, index) == (1, 0) else None
    quiet_trainer(tmp_path, 2, callbacks=[AFTER[name]()]).fit(module, small_data(Slope))
    for key in seen:
        if key.startswith("target_critic"):
            assert torch.equal(seen[key], seen[key.removeprefix("target_")])
    assert seen["normalizer.count"] == 51  # one of them from the rollout in hand
    same = torch.equal(seen["log_temperature"], initial["log_temperature"])
    assert same == (name == "full_reset")


def test_plasticity_injection_into_the_whole_critic(tmp_path):
    module, said = small_sac(), []
    inputs = torch.randn(20, 1), torch.randn(20, 1)
    look = lambda: said.append([c(*inputs).detach() for c in (module.critic, module.target_critic)])  # noqa: E731
    module.on_train_epoch_start = look
    module.on_train_epoch_end = look
    injection = PlasticityCallback(PlasticityInjection(head="critic", target="target_critic"), when=AtFraction(0.5))
    quiet_trainer(tmp_path, 2, callbacks=[injection]).fit(module, small_data(Slope))
    assert injection.num_events == 1
    for before, after in zip(said[1], said[2], strict=True):
        assert torch.equal(before, after)
    assert not torch.equal(said[3][1], said[2][1])  # the targets continue to follow
    for _ in range(3000):
        torch._foreach_lerp_(_floats(module.target_critic), _floats(module.critic), 0.005)
    trained, target = module.critic(*inputs), module.target_critic(*inputs)
    assert torch.allclose(trained, target, atol=1e-4)  # the frozen copies as well


def test_a_target_that_is_not_injected_is_asked_for(tmp_path):
    for module, head, target in ((small_sac(), "critic", "target_critic"), (small_dqn(), "net", "target_net")):
        injection = PlasticityCallback(PlasticityInjection(head=head), when=AtFraction(0.5))
        with pytest.raises(ValueError, match=f"target='{target}'"):
            quiet_trainer(tmp_path, 2, callbacks=[injection]).fit(module, small_data(Slope))
    injection = PlasticityCallback(PlasticityInjection(head="actor"), when=AtFraction(0.5))  # which lacks a target
    quiet_trainer(tmp_path, 2, callbacks=[injection]).fit(small_sac(), small_data(Slope))


def test_trains_in_bfloat16(tmp_path):
    module = small_sac()
    quiet_trainer(tmp_path, 1, precision="bf16-mixed").fit(module, small_data(Slope))
    assert all(parameter.isfinite().all() for parameter in module.parameters())


def test_simba():
    net = SimBa(inputs=7, outputs=6, hidden=16, blocks=2, heads=2)
    first, last = net.encoder[0].weight, net.heads[1].weight
    assert torch.allclose(first.T @ first, torch.eye(7), atol=1e-5)
    assert torch.allclose(last @ last.T, torch.eye(3), atol=1e-5)
    inputs = torch.randn(4, 7)
    hidden = inputs @ first.T
    for block in (net.encoder[1], net.encoder[2]):
        norm = torch.nn.functional.layer_norm(hidden, (16,))
        hidden = hidden + (norm @ block.expand.weight.T).clamp(min=0) @ block.contract.weight.T
    expected = torch.nn.functional.layer_norm(hidden, (16,)) @ torch.cat([net.heads[0].weight, last]).T
    assert torch.allclose(net(inputs), expected, atol=1e-5)
    assert net.encoder[1].expand.weight.std().item() == pytest.approx((2 / 16) ** 0.5, rel=0.1)
    with pytest.raises(ValueError, match="`outputs` must be a multiple of `heads`"):
        SimBa(1, 3, heads=2)


def test_errors(tmp_path):
    with pytest.raises(ValueError, match="`temperature` must be positive"):
        small_sac(temperature=0.0)
    fit = quiet_trainer(tmp_path, 1)
    with pytest.raises(ValueError, match="SAC needs actions in a box"):
        fit.fit(small_sac(), small_data(Corridor))
    with pytest.raises(ValueError, match=r"cannot take observations \(1, 1\)"):
        fit.fit(SAC(MLP(1, [8, 2]), MLP(9, [8, 1]), 1), small_data(Slope))
    with pytest.raises(ValueError, match=r"makes actions \(2,\), the environment takes \(1,\)"):
        fit.fit(SAC(MLP(1, [8, 4]), MLP(2, [8, 1]), 1), small_data(Slope))


@pytest.mark.slow
def test_learns_to_push_a_point_to_the_middle(tmp_path):
    torch.manual_seed(0)
    module = SAC(
        SimBa(1, 2, 16, 1, heads=2),
        SimBa(2, 1, 32, 1),
        1,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
    )
    fit = quiet_trainer(tmp_path, 1)
    data = small_data(Slope, steps_per_epoch=1000, batch_size=64, capacity=2000, initial_steps=200)
    fit.fit(module, data)
    untrained = quiet_trainer(tmp_path, 1).validate(
        small_sac(), small_data(Slope, evaluation_episodes=10), verbose=False
    )
    assert fit.callback_metrics["val/episode_return"] > -4
    assert untrained[0]["val/episode_return"] < -6
