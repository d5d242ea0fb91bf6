"""Methods in Stable-Baselines3: small policies on CartPole and Pendulum."""

import copy
from functools import partial

import pytest
import torch

sb3 = pytest.importorskip("stable_baselines3")

from lightning_fire import (  # noqa: E402
    AtEpochs,
    AtFraction,
    AtNewData,
    EveryNSteps,
    Weights,
    WhenMetric,
    fire_,
    fresh_values,
    shrink_and_perturb_,
)
from lightning_fire.integrations.stable_baselines3 import ReinitCallback  # noqa: E402


def small():
    return {"policy_kwargs": {"net_arch": [16, 16]}, "seed": 0, "device": "cpu"}  # SB3 adds to what it is given


OFF_POLICY = {"learning_starts": 20, "batch_size": 16, "buffer_size": 500}


def dqn(**options):
    return sb3.DQN("MlpPolicy", "CartPole-v1", **{**small(), **OFF_POLICY, "train_freq": 4, **options})


def ppo(**options):
    return sb3.PPO("MlpPolicy", "CartPole-v1", n_steps=32, batch_size=32, n_epochs=2, **{**small(), **options})


def sac():
    return sb3.SAC("MlpPolicy", "Pendulum-v1", **small(), **OFF_POLICY)


def td3():
    return sb3.TD3("MlpPolicy", "Pendulum-v1", **small(), **OFF_POLICY)


class Watched:
    """A method that records the weights before, and the parameters with optimizer state after it."""

    def __init__(self, method=fire_):
        self.method, self.seen = method, []

    def __call__(self, model, optimizers):
        before = copy.deepcopy(model.state_dict())
        report = self.method(model, optimizers=optimizers)
        states = {parameter for optimizer in optimizers for parameter in optimizer.state}
        kept = {name for name, parameter in model.named_parameters() if parameter in states}
        self.seen.append((before, model, kept))
        return report


class Steps(ReinitCallback):
    """Records the timesteps of its events."""

    def __init__(self, when):
        self.timesteps = []
        super().__init__(self.note, when)

    def note(self, model, optimizers):
        self.timesteps.append(self.num_timesteps)
        return fire_(model, optimizers=optimizers)


@pytest.mark.parametrize("algorithm", [dqn, ppo, sac, td3])
def test_an_event_is_the_method_and_the_targets_follow(algorithm):
    class Stops(ReinitCallback):
        """Looks at the policy at the first step after the event."""

        def _on_step(self):
            if method.seen and not hasattr(self, "after"):
                self.after = copy.deepcopy(self.model.policy.state_dict())
            return True

    method, model = Watched(), algorithm()
    callback = Stops(method, AtFraction(0.5))
    model.learn(128, callback)
    ((before, changed, kept),) = method.seen
    assert changed is model.policy
    expected = algorithm().policy
    expected.load_state_dict(before)
    selected = {view.name for view in Weights().select(expected)}
    fire_(expected)
    targets = [name for name, _ in expected.named_children() if name.endswith("_target")]
    assert len(targets) == {dqn: 1, ppo: 0, sac: 1, td3: 2}[algorithm]
    for target in targets:
        getattr(expected, target).load_state_dict(getattr(expected, target.removesuffix("_target")).state_dict())
    for name, value in expected.state_dict().items():
        assert torch.equal(callback.after[name], value), name
    trained = {name for name, _ in expected.named_parameters() if "_target" not in name}
    assert kept == trained - selected  # nothing else was dropped


@pytest.mark.parametrize(
    ("algorithm", "when", "expected"),
    [
        (dqn, AtFraction(0.5), [64]),
        (dqn, EveryNSteps(50), [52, 100]),
        (ppo, EveryNSteps(50), [64, 128]),  # rollouts of 32
        (ppo, [EveryNSteps(150), AtFraction(0.2)], [32]),
    ],
)
def test_it_acts_at_the_first_rollout_at_which_it_is_due(algorithm, when, expected):
    callback = Steps(when)
    algorithm().learn(160 if algorithm is ppo else 128, callback)
    assert callback.timesteps == expected


@pytest.mark.parametrize("stop", [48, 52, 60])
def test_a_loaded_model_neither_loses_nor_repeats_an_event(tmp_path, stop):
    first, second = Steps(EveryNSteps(50)), Steps(EveryNSteps(50))
    model = dqn()
    model.learn(stop, first)
    model.save(tmp_path / "model")
    sb3.DQN.load(tmp_path / "model", env=model.env).learn(128 - stop, second, reset_num_timesteps=False)
    assert first.timesteps + second.timesteps == [52, 100]


def test_another_training_counts_from_0():
    callback, model = Steps(AtFraction(0.5)), ppo()
    for _ in range(2):
        model.learn(64, callback)
    assert callback.timesteps == [32, 32]


@pytest.mark.parametrize("algorithm", [dqn, ppo])
def test_each_training_asks_the_schedule_for_its_own_timesteps(algorithm):
    """Two from 0, and one that continues the second."""
    callback, model = Steps(EveryNSteps(32)), algorithm()
    for reset in (True, True, False):
        model.learn(64, callback, reset_num_timesteps=reset)
    assert callback.timesteps == [32, 32, 64, 96]


def test_other_methods_and_the_log(tmp_path, capsys):
    model = ppo()
    model.set_logger(sb3.common.logger.configure(str(tmp_path), ["csv"]))
    method = partial(shrink_and_perturb_, target=fresh_values(ppo().policy, seed=1))
    model.learn(128, ReinitCallback(method, verbose=1))
    model.logger.close()
    assert "shrink_and_perturb acted at timestep 64 (dfi_normalized " in capsys.readouterr().out
    assert "shrink_and_perturb/sfe" in (tmp_path / "progress.csv").read_text()


def test_unsupported_settings_are_an_error():
    for when in (AtNewData(), AtEpochs([1]), WhenMetric("rollout/ep_rew_mean", above=1.0)):
        with pytest.raises(ValueError, match="cannot be used here: only the steps of training are known"):
            ReinitCallback(when=when)
