"""The board's task of reinforcement learning: all methods learn from the same data, and act at each change."""

import numpy as np
import pytest
import torch
from methods_table import made

from lightning_fire.cli import main
from lightning_fire.methods import METHODS, EventMethod
from lightning_fire.recipe.recipe import find_recipe

pytest.importorskip("stable_baselines3", reason="the task needs Stable-Baselines3")

from lightning_fire.board.changing_pendulum import ChangingPendulum
from lightning_fire.board.reinforcement_learning import train

RECIPE = "board/reinforcement_learning"
KINDS = {None: None, **{kind.name: kind for kind in METHODS}}


def logged(kind, seed=0, tasks=3):
    """Return what a short training logs, by key, and after each task NumPy's random state, which draws batches."""
    found, states = {}, []

    def log(key, value, step):
        found.setdefault(key, []).append((step, value))
        if key == "return":
            states.append(np.random.get_state()[1:3])

    np.random.seed(seed)
    torch.manual_seed(seed)
    method = made(kind, "q_net.q_net.4", "q_net_target.q_net.4") if kind else None
    train(seed, method, log, tasks, steps=12, updates=1, hidden=8)
    return found, states


@pytest.fixture(scope="module")
def vanilla():
    return logged(None)


@pytest.mark.filterwarnings("ignore:DQNPolicy has no normalization layer")  # WeightProjection
@pytest.mark.parametrize("name", [name for name in KINDS if name])
def test_every_method_learns_from_the_same_transitions_in_the_same_batches(vanilla, name):
    (own, states), (others, expected) = logged(KINDS[name]), vanilla
    assert own["data/checksum"] == others["data/checksum"]
    np.testing.assert_equal(states, expected)
    returns, of_vanilla = ([value for _, value in found["return"]] for found in (own, others))
    if issubclass(KINDS[name], EventMethod):
        assert returns[0] == of_vanilla[0]
        assert [task for task, _ in own[f"{name}/event"]] == [1, 2]
    assert returns != of_vanilla


def test_transitions_are_others_in_each_task_and_with_each_seed(vanilla):
    checksums = [value for _, value in vanilla[0]["data/checksum"]]
    assert len({*checksums, *(value for _, value in logged(None, seed=1)[0]["data/checksum"])}) == 6
    assert all(value == np.float32(value) for value in checksums)


def test_states_are_of_all_angles_and_speeds_and_rewards_are_the_true_ones(vanilla):
    env = ChangingPendulum(2000, 0, 0, length=20, speed=8.0)
    env.reset()
    angles = (env.angle + np.pi) % (2 * np.pi)
    assert np.histogram(angles, 8)[0].min() > 200 and np.histogram(env.speed, 8, (-8, 8))[0].min() > 200
    played, seen = ChangingPendulum(100, 0, 0).play(lambda seen: torch.ones(len(seen), dtype=int))
    assert seen.shape == (200 * 100, 3)
    assert -1700 < played < -900  # as of no control


def test_the_recipe_trains_each_of_its_own_methods(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    short = ["tasks=2", "steps=10", "updates=1", "hidden=8"]
    for method in ("vanilla", *find_recipe(RECIPE).methods):
        main(["fit", RECIPE, "--method", method, *(f"--train.init_args.{word}" for word in short)])
