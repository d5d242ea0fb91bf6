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
gymnasium = pytest.importorskip("gymnasium")

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
    Attached,
    ContinualBackprop,
    EventMethod,
    L2Init,
    Loop,
    PlasticityInjection,
    ReDo,
    SelfNormalizedReset,
    StepMethod,
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
    seen, act = [], callback._act

    def watch(*args, **options):
        policy = callback._network
        before = copy.deepcopy(policy.state_dict())
        values = act(*args, **options)
        states = {parameter for optimizer in callback._loop.optimizers for parameter in optimizer.state}
        kept = {name for name, parameter in policy.named_parameters() if parameter in states}
        seen.append((before, kept))
        return values

    callback._act = watch
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
                (found["own"],) = self._loop.gradients(of, 1)
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
def test_an_interrupted_learn_changes_nothing_in_a_later_one(algorithm):
    model = algorithm()
    clips, watches = PlasticityCallback(WeightClipping(0.5)), PlasticityCallback(ContinualBackprop())
    with pytest.raises(KeyboardInterrupt):
        model.learn(64, [clips, watches, Interrupt()])
    weight = next(model.policy.parameters())
    with torch.no_grad():
        weight.fill_(5.0)
    model.learn(64, reset_num_timesteps=False)
    assert weight.min() > 4
    parts = [part for callback in (clips, watches) for _, part in callback._parts]
    assert parts and not any(part.watching for part in parts)
    model.learn(64, [clips, watches], reset_num_timesteps=False)
    assert weight.max() <= 0.5 and not clips._parts
    optimizers = [part.optimizer for part in model.policy.modules() if hasattr(part, "optimizer")]
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


def said_in(caplog, agent, callback, *timesteps, **options):
    caplog.clear()
    with caplog.at_level(logging.INFO, "lightning_fire"):
        for each in timesteps:
            agent.learn(each, callback, **options)
    return [record.message for record in caplog.records if record.name == "lightning_fire"]


@pytest.mark.parametrize("when", [AtFraction(0.9), EveryNSteps(96)])
def test_a_learn_without_an_event_says_so(caplog, when):
    _, none = said_in(caplog, ppo(), PlasticityCallback(FIRE(), when), 64)
    assert none == f"fire had no event in this learn(): {when} was not due at any of its rollouts."


@pytest.mark.parametrize("reset", [True, False])
@pytest.mark.parametrize(("method", "at"), [(FIRE(), "first rollout of"), (ReDo(), "first rollout with data of")])
def test_an_event_that_is_due_at_the_end_comes_in_the_next_learn_as_is_said(caplog, method, at, reset):
    """Also where the count starts from 0 again, as Stable-Baselines3 does by default."""
    agent, callback = ppo(), Noting(method, EveryNSteps(64))
    _, promise = said_in(caplog, agent, callback, 64)
    assert promise == f"{method.name} will act at the {at} the next learn(): EveryNSteps(n=64) is due."
    before, acted = said_in(caplog, agent, callback, 64, reset_num_timesteps=reset)[:2]
    start = (0 if reset else 64) + 32 * method.needs_batches
    assert callback.timesteps == [start]
    assert acted.startswith(f"{method.name} acted at timestep {start} (") and "will" not in before + acted


def test_each_learn_that_counts_from_0_has_the_event_of_the_one_before():
    """By default; the state of a saved agent counts, too."""
    agent, callback = ppo(), Noting(FIRE(), EveryNSteps(64))
    for _ in range(3):
        agent.learn(64, callback)
    assert callback.timesteps == [0, 0] and callback.values["fire/event"] == 2
    agent, longer = ppo(), Noting(FIRE(), EveryNSteps(96))  # timesteps of several do not add up
    for _ in range(3):
        agent.learn(64, longer)
    assert longer.timesteps == []


@pytest.mark.parametrize("reset", [True, False])
def test_a_saved_agent_acts_in_the_next_learn_if_an_event_was_due(tmp_path, reset):
    agent, later = ppo(), Noting(FIRE(), EveryNSteps(64))
    agent.learn(64, Noting(FIRE(), EveryNSteps(64)))
    agent.save(tmp_path / "agent")
    loaded = sb3.PPO.load(tmp_path / "agent", env=agent.env)
    assert loaded.plasticity["fire"]["timesteps"] == 64
    loaded.learn(32, later, reset_num_timesteps=reset)
    assert later.timesteps == [0 if reset else 64]


def test_the_state_of_an_earlier_version_is_read(tmp_path):
    agent, later = ppo(), Noting(FIRE(), EveryNSteps(32))
    agent.plasticity = {"fire": {"asked": 0, "training": {"event": 5, "method": (), "initial": None}}}
    agent.learn(64, later)
    assert later.timesteps == [32] and later.values["fire/event"] == 5


@pytest.mark.parametrize("algorithm", [dqn, ppo, sac])
def test_a_penalty_is_that_of_hooks_of_ones_own(algorithm):
    """Attached once for each optimizer, around its steps."""
    method, twin = L2Init(0.1), algorithm()
    start = {name: value.clone() for name, value in twin.policy.state_dict().items()}
    for part in twin.policy.modules():
        if isinstance(optimizer := getattr(part, "optimizer", None), torch.optim.Optimizer):
            attached = method.attach(twin.policy, Loop(optimizer, initial=start))
            optimizer.register_step_pre_hook(lambda each, *_, attached=attached: attached.before_step(each))
    twin.learn(96)
    model, callback = algorithm(), Noting(method)
    model.learn(96, callback)
    assert equal(model, twin)
    assert callback.values["l2_init/penalty"] > 0


@pytest.mark.parametrize(("algorithm", "number"), [(dqn, 1), (ppo, 1), (sac, 2)])
def test_steps_are_counted_for_each_optimizer(algorithm, number):
    """A method is attached once to each optimizer, called around each of its steps, and closed at the end."""
    calls = []

    class Counts(StepMethod):
        name = "counts"

        def begin(self, model, training):
            (optimizer,), attached = training.optimizers, Attached()
            attached.before_step = lambda each: calls.append(("before", optimizer, each))
            attached.after_step = lambda: calls.append(("after", optimizer, optimizer))
            attached.metrics = lambda: {"steps": float(len(calls)), "threshold": 3.0}
            attached.close = lambda: calls.append(("close", optimizer, optimizer))
            return attached

    steps, callback, model = [], Noting(Counts()), algorithm()
    for part in model.policy.modules():
        if isinstance(optimizer := getattr(part, "optimizer", None), torch.optim.Optimizer):
            optimizer.register_step_post_hook(lambda each, *_: steps.append(each))
    model.learn(64, callback)
    assert all(own is other for _, own, other in calls)
    assert len(set(steps)) == number and [kind for kind, *_ in calls[-number:]] == ["close"] * number
    around = [(kind, each) for each in steps for kind in ("before", "after")]
    assert [(kind, each) for kind, each, _ in calls[:-number]] == around
    assert callback.values["counts/threshold"] == 3.0  # the mean, and sums of others
    assert callback.values["counts/steps"] % number == 0


class DictEnv(gymnasium.Env):
    """Observations in a dict, as of goals."""

    observation_space = gymnasium.spaces.Dict(
        {"pose": gymnasium.spaces.Box(-1, 1, (3,)), "goal": gymnasium.spaces.Box(-1, 1, (2,))}
    )
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.random = 0, np.random.default_rng(0)
        return self._observation(), {}

    def _observation(self):
        return {name: self.random.uniform(-1, 1, space.shape).astype("float32") for name, space in self._spaces()}

    def _spaces(self):
        return self.observation_space.spaces.items()

    def step(self, action):
        self.t += 1
        return self._observation(), float(action), False, self.t >= 10, {}


@pytest.mark.parametrize("algorithm", [sb3.PPO, sb3.A2C])
@pytest.mark.parametrize("kind", [FIRE, ReDo, DASH, ContinualBackprop, MeasurePlasticity])
def test_observations_in_a_dict(algorithm, kind):
    """The algorithm's own rollout stays as it is: what only looks at it changes no training."""
    own = {"batch_size": 32, "n_epochs": 1} if algorithm is sb3.PPO else {}

    def learned(callback):
        return algorithm("MultiInputPolicy", DictEnv(), n_steps=32, **own, **small()).learn(160, callback)

    when = EveryNSteps(64) if issubclass(kind, EventMethod) else None
    callback = Noting(kind(), when)
    model = learned(callback)
    assert callback.timesteps
    for method in (MeasurePlasticity(), LOOKS) if kind is MeasurePlasticity else ():
        assert equal(learned(PlasticityCallback(method, EveryNSteps(64) if method is LOOKS else None)), learned(None))
    assert model.num_timesteps == 160


def test_ranks_are_those_of_the_last_rollout():
    """Not of the first of the `learn`, which a method that acts at each step had kept."""
    found = []

    class Keeps(Noting):
        def _record(self, values):
            if values:
                _, part = self._parts[0]
                found.append((part.training.rollouts[-1], self._loop.rollouts[-1]))
            super()._record(values)

    ppo().learn(128, Keeps(MeasurePlasticity()))
    assert len(found) == 3 and all(own is last for own, last in found)
    assert len({id(own) for own, _ in found}) == 3


def test_the_clock_counts_each_timestep_once():
    asked = []

    class Notes(Schedule):
        def due(self, clock):
            asked.append(clock)
            return False

    agent, callback = ppo(), PlasticityCallback(FIRE(), Notes())
    agent.learn(64, callback)
    assert [clock.step for clock in asked if clock.progress] == list(range(1, 33))
    assert [clock.progress for clock in asked if clock.progress] == [step / 64 for step in range(1, 33)]
    assert [clock.progress_before for clock in asked if clock.progress] == [step / 64 for step in range(32)]
    assert not any(clock.epoch_start or clock.new_data or clock.epoch for clock in asked)
    assert [clock.step for clock in asked if not clock.progress] == list(range(33, 65))  # at the end


def test_the_sentence_before_a_learn(caplog):
    rollout = "an event waits for the next rollout, of 32 timesteps."
    first, *_ = said_in(caplog, ppo(), PlasticityCallback(FIRE(), EveryNSteps(50)), 64)
    assert first.startswith("fire acts on 5 of 5 weight matrices, preset cnn (")
    assert first.endswith(f", when EveryNSteps(n=50) is due; {rollout}")
    first, *_ = said_in(caplog, dqn(), PlasticityCallback(FIRE(), EveryNSteps(50)), 64)
    assert first.endswith(", when EveryNSteps(n=50) is due.")
    first, *_ = said_in(caplog, ppo(), PlasticityCallback(FIRE(), AtFraction(0.5)), 64)
    assert "is due; a fraction is of all 64 timesteps: to act in each of several learn() give EveryNSteps(n)." in first
    assert said_in(caplog, ppo(), PlasticityCallback(L2Init(0.1)), 64) == ["l2_init acts at each step."]


def test_what_cannot_be_measured_is_said_in_the_first_learn_only(caplog):
    agent, measures = ppo(), Noting(MeasurePlasticity())
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            agent.learn(64, measures, reset_num_timesteps=False)
        assert measures.timesteps == [32, 96]
        assert caplog.text.count("plasticity/critical_sharpness is not logged: the loss cannot") == 1
        ppo().learn(64, PlasticityCallback(MeasurePlasticity(), log_every=16))
    assert caplog.text.count("plasticity/critical_sharpness is not logged") == 2  # another agent


def test_a_fraction_is_of_all_calls_of_learn(caplog):
    """Of all timesteps so far the middle lies where the second begins, and for the third it has passed."""
    agent, fire = ppo(), Noting(FIRE())
    said = [said_in(caplog, agent, fire, 128, reset_num_timesteps=False) for _ in range(3)]
    assert fire.timesteps == [64, 128]
    for (first, *_), end in zip(said, (128, 256, 384), strict=True):
        assert f"is due; a fraction is of all {end} timesteps: " in first
    assert all(len(each) == 2 for each in said) and "had no event in this learn()" in said[2][1]


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
    assert callback.timesteps == [32, 0, 32, 64, 96]  # due at the end of the first, it acts as the second begins


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
            if self._event == 2 and not seen:
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
    assert callback._event == 2


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
