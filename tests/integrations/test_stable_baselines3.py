"""Every method in Stable-Baselines3: small policies on CartPole and Pendulum."""

import copy
import logging
import random
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from methods_table import KEYS, made
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

sb3 = pytest.importorskip("stable_baselines3")

from stable_baselines3.common.callbacks import (  # noqa: E402
    BaseCallback,
    CallbackList,
    EvalCallback,
    EveryNTimesteps,
    StopTrainingOnNoModelImprovement,
)

from lightning_fire import (  # noqa: E402
    AnyOf,
    AtEpochs,
    AtFraction,
    AtNewData,
    EveryNSteps,
    Parameters,
    Schedule,
    Weights,
    WhenMetric,
)
from lightning_fire.integrations.stable_baselines3 import MeasurePlasticity, PlasticityCallback  # noqa: E402
from lightning_fire.methods import (  # noqa: E402
    DASH,
    FIRE,
    METHODS,
    ContinualBackprop,
    EventMethod,
    L2Init,
    Loop,
    PlasticityInjection,
    ReDo,
    SelfNormalizedReset,
    WeightClipping,
    WeightProjection,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*Policy has no normalization layer")  # of WeightProjection


def small():
    return {"policy_kwargs": {"net_arch": [16, 16]}, "seed": 0, "device": "cpu"}  # SB3 adds to what it is given


OFF_POLICY = {"learning_starts": 20, "batch_size": 16, "buffer_size": 500}
SOMETIMES = {"train_freq": 8, "gradient_steps": 2}


def dqn(**options):
    return sb3.DQN("MlpPolicy", "CartPole-v1", **{**small(), **OFF_POLICY, "train_freq": 4, **options})


def ppo(**options):
    return sb3.PPO("MlpPolicy", "CartPole-v1", n_steps=32, batch_size=16, n_epochs=2, **{**small(), **options})


def a2c():
    return sb3.A2C("MlpPolicy", "CartPole-v1", n_steps=16, **small())


def sac(**options):
    return sb3.SAC("MlpPolicy", "Pendulum-v1", **small(), **OFF_POLICY, **SOMETIMES, **options)


def td3():
    return sb3.TD3("MlpPolicy", "Pendulum-v1", **small(), **OFF_POLICY, **SOMETIMES)


HEADS = {dqn: ("q_net.q_net.4", "q_net_target.q_net.4"), ppo: ("action_net", None), sac: ("actor.mu", None)}


class Noting(PlasticityCallback):
    """Records the timesteps and values of what is logged."""

    def __init__(self, *args, **options):
        super().__init__(*args, **{"log_every": 16, **options})
        self.timesteps, self.values = [], {}

    def _record(self, values):
        if values:
            self.timesteps.append(self.model.num_timesteps)
        self.values.update(values)
        super()._record(values)


def watched(callback):
    """Record the weights before each event, and the names with optimizer state that remain."""
    training, seen = callback._training, []
    act = training.act

    def watch(*event):
        before = copy.deepcopy(training.model.state_dict())
        values = act(*event)
        states = {parameter for optimizer in training.optimizers for parameter in optimizer.state}
        kept = {name for name, parameter in training.model.named_parameters() if parameter in states}
        seen.append((before, kept))
        return values

    training.act = watch
    return seen


def equal(one, other):
    one, other = one.policy.state_dict(), other.policy.state_dict()
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.fixture(scope="module")
def undisturbed():
    """Models that have learned without a method, by algorithm."""
    return {algorithm: algorithm().learn(96) for algorithm in (dqn, ppo, a2c, sac, td3)}  # the seed is set when made


@pytest.mark.parametrize("algorithm", HEADS)
@pytest.mark.parametrize("kind", METHODS, ids=lambda kind: kind.__name__)
def test_every_method_acts_and_logs(kind, algorithm, undisturbed):
    when = EveryNSteps(24) if issubclass(kind, EventMethod) else None
    callback = Noting(made(kind, *HEADS[algorithm]), when)
    model = algorithm().learn(96, callback)
    if KEYS[kind]:
        assert KEYS[kind] in callback.values
        steps = {dqn: [24, 48, 72], sac: [24, 48, 72], ppo: [32, 64]}[algorithm]
        assert callback.timesteps == steps or not issubclass(kind, EventMethod)
    if kind is not SelfNormalizedReset or algorithm is dqn:  # in others all units fire
        assert not equal(model, undisturbed[algorithm])


@pytest.mark.parametrize("kind", METHODS, ids=lambda kind: kind.__name__)
def test_every_method_resumes_to_the_same_weights(kind, tmp_path):
    """With the environment, the replay buffer and the random states as they were, which `save` leaves out."""
    if kind is PlasticityInjection:
        pytest.skip("load() makes a policy without the injected head")

    def callback():
        return Noting(made(kind, *HEADS[dqn]), EveryNSteps(24) if issubclass(kind, EventMethod) else None)

    model = dqn()
    model.learn(64, callback())
    model.save(tmp_path / "model")
    env, buffer, space = copy.deepcopy((model.env, model.replay_buffer, model.action_space))
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    whole, rest = callback(), callback()
    model.learn(32, whole, reset_num_timesteps=False)
    resumed = sb3.DQN.load(tmp_path / "model", env=env, force_reset=False)
    resumed.replay_buffer, resumed.action_space = buffer, space
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
    resumed.learn(32, rest, reset_num_timesteps=False)
    assert equal(resumed, model)
    assert {**rest.values, "fire/seconds": 0, f"{kind.name}/seconds": 0} == {
        **whole.values,
        "fire/seconds": 0,
        f"{kind.name}/seconds": 0,
    }


class Looks(DASH):
    """Looks at gradients and shrinks nothing; target networks stay."""

    changes_weights = False


LOOKS = Looks(minimum=1.0, num_batches=3, optimizer_state="keep")


@pytest.mark.parametrize("algorithm", [dqn, ppo, a2c, sac, td3])
@pytest.mark.parametrize("method", [MeasurePlasticity(), LOOKS])
def test_looking_at_data_leaves_no_trace(algorithm, method, undisturbed):
    callback = Noting(method, EveryNSteps(24) if isinstance(method, EventMethod) else None)
    model = algorithm()
    model.learn(96, callback)
    assert equal(model, undisturbed[algorithm])
    if isinstance(method, DASH):
        assert callback.values["dash/batches"] == 3
    else:
        assert 0 <= callback.values["plasticity/dormant_fraction"] < 1
        assert 1 <= callback.values["plasticity/stable_rank"] <= callback.values["plasticity/srank"] <= 16
        assert callback.values["plasticity/readiness"] >= 0


def test_noise_of_exploration_that_depends_on_the_state_is_restored():
    whole = sac(use_sde=True).learn(96)
    assert equal(sac(use_sde=True).learn(96, PlasticityCallback(LOOKS, EveryNSteps(24))), whole)


@pytest.mark.parametrize("algorithm", [dqn, ppo, sac, td3])
def test_an_event_is_that_of_a_plain_loop_and_the_targets_follow(algorithm):
    class Stops(PlasticityCallback):
        """Looks at the policy at the first step after the event."""

        def _on_step(self):
            if seen and not hasattr(self, "after"):
                self.after = copy.deepcopy(self.model.policy.state_dict())
            return True

    callback = Stops(FIRE())  # in the middle
    seen = watched(callback)
    algorithm().learn(128, callback)
    ((before, kept),) = seen
    expected = algorithm().policy
    expected.load_state_dict(before)
    trained = {name for name, _ in expected.named_parameters() if "_target" not in name}
    selected = {view.name for view in Weights().select(expected)} & trained
    FIRE()(expected, Loop([part.optimizer for part in expected.modules() if hasattr(part, "optimizer")]))
    targets = [name for name, _ in expected.named_children() if name.endswith("_target")]
    assert len(targets) == {dqn: 1, ppo: 0, sac: 1, td3: 2}[algorithm]
    for target in targets:
        getattr(expected, target).load_state_dict(getattr(expected, target.removesuffix("_target")).state_dict())
    for name, value in expected.state_dict().items():
        assert torch.equal(callback.after[name], value), name
    assert kept == trained - selected  # nothing else was dropped


def test_the_gradients_are_those_of_the_algorithm():
    """By which its next step would move the weights: of the same samples, before clipping."""
    found = {}

    class Compares(PlasticityCallback):
        def _on_rollout_end(self):
            super()._on_rollout_end()
            if self.num_timesteps == 32:
                of = [p for p in self.model.policy.q_net.parameters()]
                (found["own"],) = self._training.gradients(of, 1)
                optimizer = self.model.policy.optimizer
                found["handle"] = optimizer.register_step_pre_hook(
                    lambda *_: found.update(next=found.get("next") or [p.grad.clone() for p in of])
                )

    model = dqn(max_grad_norm=1e9)
    model.learn(40, Compares(FIRE()))
    assert all(torch.equal(own, other) for own, other in zip(found["own"], found["next"], strict=True))
    assert any(own.abs().sum() > 0 for own in found["own"])


def test_the_target_of_an_injected_head_gets_its_frozen_copies():
    """Its own would be those of older weights, and SB3 later copies trained parameters alone."""
    model = dqn(target_update_interval=24)
    model.learn(96, PlasticityCallback(PlasticityInjection(*HEADS[dqn]), EveryNSteps(40)))
    copies, targets = dict(model.q_net.named_buffers()), dict(model.q_net_target.named_buffers())
    assert len(copies) == 8 and copies.keys() == targets.keys()
    assert all(torch.equal(copy, targets[name]) for name, copy in copies.items())


def test_units_of_every_network_are_found():
    for algorithm, units in ((dqn, 32), (ppo, 64), (sac, 96), (td3, 96)):
        callback = Noting(ReDo(threshold=1e9), AtFraction(0.5))  # every unit is dormant
        algorithm().learn(64, callback)
        assert callback.values["redo/units"] == units


def test_a_method_acts_after_the_step_of_what_it_acts_on():
    """SAC's actor is trained through the critic: its graph must not lose weights that are changed in between."""
    model, callback = sac(), Noting(WeightProjection())
    start = {name: p.norm().item() for name, p in model.policy.named_parameters()}
    model.learn(64, callback)
    for name in ("actor.latent_pi.0.weight", "critic.qf0.2.weight"):
        assert model.policy.get_parameter(name).norm().item() == pytest.approx(start[name], rel=1e-5)
    only = Noting(L2Init(0.1, where=Parameters(include=["^critic"])))  # nothing of the actor's optimizer
    sac().learn(64, only)
    assert only.values["l2_init/penalty"] > 0


@pytest.mark.parametrize(
    ("algorithm", "when", "expected"),
    [
        (dqn, None, [64]),
        (dqn, EveryNSteps(50), [52, 100]),
        (ppo, EveryNSteps(50), [64, 128]),  # rollouts of 32
        (ppo, [EveryNSteps(150), AtFraction(0.2)], [32]),
    ],
)
def test_it_acts_at_the_first_rollout_at_which_it_is_due(algorithm, when, expected):
    callback = Noting(FIRE(), when)
    algorithm().learn(160 if algorithm is ppo else 128, callback)
    assert callback.timesteps == expected


def test_an_event_that_needs_data_waits_for_the_first_update():
    callback = Noting(ReDo(), EveryNSteps(8))
    dqn().learn(40, callback)
    assert callback.timesteps == [24, 32]


def test_two_callbacks_act_each_on_their_own():
    first, second = Noting(FIRE(), AtFraction(0.5), name="a"), Noting(FIRE(), EveryNSteps(50), name="b")
    dqn().learn(128, [first, second])
    assert (first.timesteps, second.timesteps) == ([64], [52, 100])
    assert set(first.values).isdisjoint(second.values)
    same = [CallbackList([PlasticityCallback(FIRE())]) for _ in range(2)]  # each in a list of its own
    with pytest.raises(ValueError, match="two callbacks log as 'fire'"):
        dqn().learn(32, same)


class Interrupt(BaseCallback):
    def _on_step(self):
        if self.num_timesteps == 40:
            raise KeyboardInterrupt
        return True


@pytest.mark.parametrize("again", [False, True])
def test_a_method_acts_once_after_an_interrupted_learn(again):
    """The gradient of one penalty, of a new callback or of the same one, is twice the distance of 1000."""
    model, callback, gradients = ppo(learning_rate=0.0), PlasticityCallback(L2Init(1.0)), []
    with pytest.raises(KeyboardInterrupt):
        model.learn(64, [callback, Interrupt()])
    weight = model.policy.mlp_extractor.policy_net[0].weight
    with torch.no_grad():
        weight.add_(1000.0)
    model.policy.optimizer.register_step_post_hook(lambda *_: gradients.append(weight.grad.mean().item()))
    model.learn(64, callback if again else PlasticityCallback(L2Init(1.0)), reset_num_timesteps=False)
    assert gradients and gradients == pytest.approx([2000.0] * len(gradients), rel=1e-3)


@pytest.mark.parametrize("algorithm", [dqn, sac])
def test_an_interrupted_learn_leaves_no_hooks_to_a_later_one(algorithm):
    model = algorithm()
    with pytest.raises(KeyboardInterrupt):
        model.learn(64, [PlasticityCallback(WeightClipping(0.5)), Interrupt()])
    optimizers = [part.optimizer for part in model.policy.modules() if hasattr(part, "optimizer")]
    assert any(each._optimizer_step_pre_hooks for each in optimizers)
    weight = next(model.policy.parameters())
    with torch.no_grad():
        weight.fill_(5.0)
    model.learn(64, reset_num_timesteps=False)
    assert weight.min() > 4
    assert not any(each._optimizer_step_pre_hooks or each._optimizer_step_post_hooks for each in optimizers)


@pytest.mark.parametrize(("callbacks", "end"), [([], 80), ([PlasticityCallback(FIRE(), EveryNSteps(50))], 100)])
def test_patience_begins_anew_at_an_event(callbacks, end, monkeypatch):
    monkeypatch.setattr("stable_baselines3.common.callbacks.evaluate_policy", lambda *_, **__: ([1.0], [1.0]))
    patience = StopTrainingOnNoModelImprovement(max_no_improvement_evals=2)
    model = dqn()
    evaluation = EvalCallback(model.env, callback_after_eval=patience, eval_freq=20, verbose=0)
    model.learn(160, [evaluation, *callbacks])
    assert model.num_timesteps == end


@pytest.mark.parametrize("kind", [EveryNTimesteps, EvalCallback])
def test_a_callback_that_another_one_calls_in_a_rollout_is_an_error(kind):
    first, inside = (20, "callback") if kind is EveryNTimesteps else (dqn().env, "callback_after_eval")
    outer = kind(first, **{inside: CallbackList([PlasticityCallback(FIRE())])})
    with pytest.raises(ValueError, match=f"{kind.__name__} calls fire within a rollout, where it never acts: put it"):
        dqn().learn(32, [outer])


def test_a_callback_that_has_not_acted_says_whether_the_next_learn_begins_with_an_event(caplog):
    def said(method, when, timesteps):
        caplog.clear()
        ppo().learn(timesteps, PlasticityCallback(method, when))
        return [record.message for record in caplog.records if "act" in record.message or "event" in record.message]

    with caplog.at_level(logging.INFO):
        for when in (AtFraction(0.9), EveryNSteps(96)):
            assert f"fire had no event in this learn(): {when} was not due at any" in said(FIRE(), when, 64)[-1]
        due = "of the next learn(…, reset_num_timesteps=False): EveryNSteps(n=64) is due"
        assert said(FIRE(), EveryNSteps(64), 64) == [f"fire will act at the first rollout {due}"]
        assert said(ReDo(), EveryNSteps(64), 64) == [f"redo will act at the first rollout with data {due}"]
        (acted,) = said(FIRE(), EveryNSteps(64), 96)
        assert acted.startswith("fire acted at timestep 64 (")


def test_a_schedule_of_other_than_whole_rollouts_is_warned_of_once(caplog):
    """With `learn` of as many timesteps the third event is in the middle of the third one, from 128 to 192."""
    agent, fire = ppo(), Noting(FIRE(), [EveryNSteps(50), AtFraction(0.99)])
    for _ in range(3):
        agent.learn(50, fire, reset_num_timesteps=False)
    assert fire.timesteps == [64, 128, 160]
    warned = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warned) == 1
    assert "EveryNSteps(n=50) is not a multiple of a rollout, 32 timesteps (n_steps × environments)" in warned[0]
    assert warned[0].endswith(" Give both a multiple, such as 64.")
    caplog.clear()
    ppo().learn(64, PlasticityCallback(FIRE(), EveryNSteps(64)))
    dqn().learn(64, PlasticityCallback(FIRE(), EveryNSteps(50)))
    ppo().learn(64, PlasticityCallback(MeasurePlasticity()))
    assert "multiple" not in caplog.text


def test_what_cannot_be_measured_is_said_in_the_first_learn_only(caplog):
    agent, measures = ppo(), Noting(MeasurePlasticity())
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            agent.learn(64, measures, reset_num_timesteps=False)
        assert measures.timesteps == [32, 96]
        assert caplog.text.count("plasticity/critical_sharpness is not logged: the loss cannot") == 1
        ppo().learn(64, PlasticityCallback(MeasurePlasticity(), log_every=16))
    assert caplog.text.count("plasticity/critical_sharpness is not logged") == 2  # another agent


def test_a_fraction_is_said_to_be_of_all_calls_of_learn(caplog):
    """Of all timesteps so far the middle lies where the second begins, and for the third it has passed."""
    agent, fire, said = ppo(), Noting(FIRE()), []
    for _ in range(3):
        with caplog.at_level(logging.INFO):
            agent.learn(128, fire, reset_num_timesteps=False)
        said.append(caplog.text)
        caplog.clear()
    assert fire.timesteps == [64, 128]
    assert "fire will act in this learn(): AtFraction(fraction=0.5) is a fraction of all 128 timesteps." in said[0]
    assert "; 5 of 5 weight matrices, preset cnn)" in said[0] and "no event" not in said[0]
    assert "fire will not act in this learn(): AtFraction(fraction=0.5) is a fraction of all 384 timesteps." in said[2]
    assert "give EveryNSteps(n), or call fire_ between them" in said[2] and "had no event in this learn()" in said[2]
    with caplog.at_level(logging.INFO):
        ppo().learn(64, PlasticityCallback(FIRE(), EveryNSteps(32)))
        ppo().learn(64, PlasticityCallback(L2Init(1e-3)))
    assert "this learn()" not in caplog.text


@pytest.mark.parametrize("stop", [48, 52, 60])
def test_a_loaded_model_neither_loses_nor_repeats_an_event(tmp_path, stop):
    first, second = Noting(FIRE(), EveryNSteps(50)), Noting(FIRE(), EveryNSteps(50))
    model = dqn()
    model.learn(stop, first)
    model.save(tmp_path / "model")
    sb3.DQN.load(tmp_path / "model", env=model.env).learn(128 - stop, second, reset_num_timesteps=False)
    assert first.timesteps + second.timesteps == [52, 100]
    assert second.values["fire/event"] == 2


@pytest.mark.parametrize("algorithm", [dqn, ppo])
def test_each_training_asks_the_schedule_for_its_own_timesteps(algorithm):
    """Two from 0, and one that continues the second."""
    callback, model = Noting(FIRE(), EveryNSteps(32)), algorithm()
    for reset in (True, True, False):
        model.learn(64, callback, reset_num_timesteps=reset)
    assert callback.timesteps == [32, 32, 64, 96]


def test_the_log_of_the_library_has_the_values(tmp_path):
    model = ppo()
    model.set_logger(sb3.common.logger.configure(str(tmp_path), ["csv"]))
    model.learn(128, PlasticityCallback(FIRE(), name="ours"))
    model.logger.close()
    assert "ours/sfe" in (tmp_path / "progress.csv").read_text()


def test_unsupported_settings_are_an_error_before_training():
    nested = AnyOf([AtFraction(0.5), AnyOf([AtEpochs([1])])])
    for when in (AtNewData(), AtEpochs([1]), nested, WhenMetric("rollout/ep_rew_mean", above=1.0)):
        with pytest.raises(ValueError, match="cannot be used here: only the steps of training are known"):
            PlasticityCallback(FIRE(), when)
    with pytest.raises(ValueError, match="acts at every step"):
        PlasticityCallback(ContinualBackprop(), AtFraction(0.5))
    with pytest.raises(ValueError, match="`log_every` must be at least 1, got 0"):
        PlasticityCallback(FIRE(), log_every=0)
    with pytest.raises(ValueError, match="needs the same head of the target network too"):
        dqn().learn(32, PlasticityCallback(PlasticityInjection("q_net.q_net.4")))
    with pytest.raises(ValueError, match="nope"):
        dqn().learn(32, PlasticityCallback(FIRE(where=Weights(include=["nope"]))))


def test_a_given_average_of_the_trained_network_begins_again_from_its_new_weights():
    """The target network has the same names and shapes, and is nearer to the average."""
    model = dqn()
    network = model.policy.q_net
    average, seen = AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(0.99)), []

    class Sees(PlasticityCallback):
        def _on_rollout_start(self):
            super()._on_rollout_start()
            if self._training.event == 2 and not seen:
                seen.extend(map(torch.equal, average.module.parameters(), network.parameters()))

    model.learn(60, Sees(FIRE(), EveryNSteps(40), averages=average))
    assert seen and all(seen)


def test_an_algorithm_whose_policy_no_optimizer_steps_has_no_gradients_for_a_method():
    """As TRPO of sb3-contrib, whose `train` also needs a `target_kl`."""
    model = ppo()
    model.line_search_max_iter = 10
    with pytest.raises(ValueError, match=r"DASH needs gradients by which .* step, and PPO uses a line search"):
        model.learn(64, PlasticityCallback(DASH(), EveryNSteps(32)))
    ppo().learn(64, callback := PlasticityCallback(DASH(), EveryNSteps(32)))
    assert callback._training.event == 2


def test_a_second_learn_of_one_model_asks_the_schedule():
    """Each with a new callback, as in two cells of a notebook, and the event in the second one."""
    for algorithm in (dqn, ppo):
        model, callbacks = algorithm(), [Noting(FIRE(), EveryNSteps(96)) for _ in range(2)]
        for callback in callbacks:
            model.learn(64 if callback is callbacks[0] else 96, callback, reset_num_timesteps=False)
        assert [callback.timesteps for callback in callbacks] == [[], [96]]


def test_a_second_learn_from_0_asks_the_schedule_from_its_start():
    """Also for the steps before there was data."""
    callback, model = Noting(ReDo(threshold=1e9), EveryNSteps(22)), dqn()
    for _ in range(2):
        model.learn(40, callback)
    assert callback.timesteps == [24, 24]


def test_a_schedule_of_ones_own_sees_no_start_of_an_epoch():
    @dataclass(frozen=True)
    class AtStarts(Schedule):
        def due(self, clock):
            return clock.epoch_start

    callback = Noting(FIRE(), AtStarts())
    dqn().learn(64, callback)
    assert callback.timesteps == []
