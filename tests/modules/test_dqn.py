"""DQN against slow obvious versions, its target network, and that it learns."""

import copy
from functools import partial

import pytest
import torch
from environments import Corridor, Slope
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from replay_training import quiet_trainer, small_data, small_dqn, transitions
from small_training import resumed_from
from torchvision.ops import MLP

from lightning_fire import (
    AtFraction,
    EveryNSteps,
    FIRECallback,
    FullReset,
    Log,
    Parameters,
    PlasticityCallback,
    ReDo,
    ShrinkAndPerturb,
)
from lightning_fire.callbacks import PlasticityMonitor
from lightning_fire.modules import DQN
from lightning_fire.nets import NatureCNN


@pytest.mark.parametrize("huber_delta", [1.0, 0.2, None])
@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("several_steps", [False, True])
def test_the_loss_is_that_of_one_transition_after_another(several_steps, double, huber_delta):
    module = small_dqn(double=double, discount=0.9, huber_delta=huber_delta)
    for parameter in module.target_net.parameters():
        parameter.data += 0.3
    batch = transitions(20, 3, torch.randint(2, (20,)))
    discounts = 0.9 ** torch.randint(1, 4, (20,)) if several_steps else torch.full((20,), 0.9)
    losses = []
    for seen, action, reward, following, terminated, discount in zip(*batch[:5], discounts, strict=True):
        goal = reward
        if not terminated:
            values = module.target_net(following)
            goal = reward + discount * (values[module.net(following).argmax()] if double else values.max())
        error = abs(module.net(seen)[action] - goal)
        if huber_delta is None:
            losses.append(error**2)
        else:
            losses.append(0.5 * error**2 if error < huber_delta else huber_delta * (error - 0.5 * huber_delta))
    batch = batch._replace(discounts=discounts) if several_steps else batch
    assert torch.allclose(module.loss(batch), torch.stack(losses).mean())


def test_another_module_on_the_same_data_has_returns_of_its_own(tmp_path):
    data, seen = small_data(Corridor), []

    class Watched(DQN):
        def update(self, transitions, generator):
            seen.append(transitions.discounts)
            return super().update(transitions, generator)

    for n_step in (1, 2, 1):
        quiet_trainer(tmp_path, 1).fit(Watched(small_dqn().net, n_step=n_step), data)
    assert [discounts is None for discounts in seen] == [True] * 40 + [False] * 40 + [True] * 40


@pytest.mark.filterwarnings("ignore:Using ModelCheckpoint with manual optimization")
def test_double_dqn_with_returns_over_three_steps_and_redo_resumes(tmp_path):
    """ReDo and `PlasticityMonitor` use the pass with gradients, not the one that chooses the next actions."""
    given = []

    class Keeps(Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            given.append(batch)

    def fit(checkpoint=None):
        torch.manual_seed(0)
        callbacks = [
            Keeps(),
            PlasticityCallback(ReDo(threshold=0.5), EveryNSteps(20)),
            PlasticityMonitor(data_every_n_steps=10, dormancy_threshold=0.5),
            ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=57, save_on_train_epoch_end=False),
        ]
        module = small_dqn(double=True, n_step=3)
        trainer = quiet_trainer(tmp_path, 2, callbacks=callbacks, enable_checkpointing=True)
        trainer.fit(module, small_data(Corridor), **resumed_from(checkpoint))
        return module, trainer

    whole, trainer = fit()
    resumed, _ = fit(tmp_path / "step=67.ckpt")
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name]), name
    assert trainer.callback_metrics["redo/units"] > 0
    batch = given[-1]  # the last one of the epoch
    assert set(batch.transitions.discounts.flatten().tolist()) <= {torch.tensor(0.99**n).item() for n in (1, 2, 3)}
    mean = whole.net[0](batch.transitions.observations.flatten(0, 1)).relu().mean(0)
    dormant = (mean <= 0.5 * mean.mean()).float().mean()
    assert trainer.callback_metrics["plasticity/dormant_fraction"] == pytest.approx(float(dormant))


def test_the_fraction_of_random_actions_falls_linearly():
    module = small_dqn(epsilon=0.1, epsilon_steps=100)
    assert [module.epsilon_at(step) for step in (0, 50, 100, 10**6)] == pytest.approx([1, 0.55, 0.1, 0.1])
    observations, generator = torch.randn(4000, 3), torch.Generator().manual_seed(0)
    best = module.net(observations).argmax(1)
    for step, share in ((0, 1), (50, 0.55), (100, 0.1), (None, 0.001)):
        other = (module.act(observations, step, generator) != best).float().mean()  # of random ones, half
        assert other == pytest.approx(share / 2, abs=0.03)


def test_the_target_network_is_the_trained_one_of_every_seventh_update(tmp_path):
    seen = []

    class Watched(DQN):
        def update(self, transitions, generator):
            values = super().update(transitions, generator)
            seen.append([torch.cat([p.flatten() for p in net.parameters()]) for net in (self.net, self.target_net)])
            seen[-1] = [weights.detach().clone() for weights in seen[-1]]
            return values

    fit = quiet_trainer(tmp_path, 1)
    fit.fit(Watched(MLP(3, [16, 2]), target_update_period=7), small_data(Corridor))
    assert len(seen) == 40
    for number, (_, target) in enumerate(seen, 1):
        expected = seen[number // 7 * 7 - 1][0] if number >= 7 else seen[0][1]
        assert torch.equal(target, expected), number
        assert number % 7 == 0 or not torch.equal(target, seen[number - 1][0])


AT_HALF = AtFraction(0.5)
EVENTS = {
    "fire": FIRECallback(AT_HALF, log=Log(curvature=False)),
    "full_reset": PlasticityCallback(FullReset(), AT_HALF, log=Log(curvature=False)),
    "linear_reset": PlasticityCallback(
        FullReset(where=Parameters(include=["^net.0"])), AT_HALF, log=Log(curvature=False)
    ),
    "shrink_and_perturb": PlasticityCallback(ShrinkAndPerturb(), AT_HALF, log=Log(curvature=False)),
}


@pytest.mark.parametrize("follow", [True, False])
@pytest.mark.parametrize("name", EVENTS)
def test_right_after_an_event_the_target_network_equals_the_trained_one(tmp_path, name, follow):
    observations, said = torch.randn(50, 3), {}

    class Watched(DQN):
        def on_train_batch_start(self, batch, batch_idx):  # after the callbacks
            if batch_idx == 0:
                said[self.current_epoch] = self.net(observations).detach(), self.target_net(observations)

    event = copy.deepcopy(EVENTS[name])
    module = Watched(MLP(3, [16, 2]), target_update_period=7, targets_follow=follow)
    quiet_trainer(tmp_path, 2, callbacks=[event]).fit(module, small_data(Corridor))
    online, target = said[1]
    assert torch.equal(online, said[0][0]) == (name == "full_reset")
    if follow:  # no optimizer trains the target network: it is changed by `sync_targets` alone
        assert torch.equal(online, target)
    else:
        assert not torch.allclose(online, target, atol=1e-3)


def test_the_nature_cnn():
    net = NatureCNN(6)
    frames = torch.randint(256, (3, 4, 84, 84), dtype=torch.uint8)
    assert torch.allclose(net(frames), net(frames.float() / 255), atol=1e-6)
    assert sum(p.numel() for p in net.parameters()) == 1_687_206  # 77,984 of the encoder
    weight = net.head[0].weight.detach()
    assert weight.abs().max() <= (6 / sum(weight.shape)) ** 0.5 and weight.std() == pytest.approx(
        (2 / 3648) ** 0.5, rel=0.01
    )
    assert not any(layer.bias.any() for layer in net.modules() if hasattr(layer, "bias"))


def test_errors(tmp_path):
    with pytest.raises(ValueError, match=r"`discount` must be in \[0, 1\]"):
        small_dqn(discount=2.0)
    with pytest.raises(ValueError, match="`huber_delta` must be positive and finite, or None for squares, got 0"):
        small_dqn(huber_delta=0)
    for name in ("target_update_period", "n_step", "epsilon_steps"):
        with pytest.raises(ValueError, match=f"`{name}` must be at least 1"):
            small_dqn(**{name: 0})
    fit = quiet_trainer(tmp_path, 1)
    with pytest.raises(ValueError, match=r"has 2 actions, so that it must be \(1, 2\)"):
        fit.fit(DQN(MLP(3, [16, 5])), small_data(Corridor))
    with pytest.raises(ValueError, match=r"cannot take observations \(1, 3\)"):
        fit.fit(DQN(MLP(7, [16, 2])), small_data(Corridor))
    with pytest.raises(ValueError, match="DQN needs a discrete action space"):
        fit.fit(DQN(MLP(1, [16, 2])), small_data(Slope))


@pytest.mark.slow
def test_learns_to_move_on(tmp_path):
    """From a network that always stays, in a corridor whose end pays 2."""
    optimizer = partial(torch.optim.Adam, lr=3e-3)
    module = DQN(MLP(3, [32, 2]), optimizer, discount=0.7, target_update_period=10, epsilon_steps=200)
    with torch.no_grad():
        module.net[-2].weight.zero_()
        module.net[-2].bias.copy_(torch.tensor([1.0, 0.0]))
    fit, data = quiet_trainer(tmp_path, 1), small_data(Corridor, steps_per_epoch=600, batch_size=32, capacity=1000)
    before = quiet_trainer(tmp_path, 1).validate(module, small_data(Corridor), verbose=False)
    assert before[0]["val/episode_return"] == 0
    fit.fit(module, data)
    assert fit.callback_metrics["val/episode_return"] == 2
