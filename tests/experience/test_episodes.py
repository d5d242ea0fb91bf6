"""Episodes that can be returned to."""

import gymnasium
import numpy as np
import pytest
from environments import Corridor

from lightning_fire.experience import Gymnasium
from lightning_fire.experience.episodes import SeededEpisodes


def walk(env: gymnasium.Env, steps: int, seed: int = 0, ended: bool = False) -> list:
    generator, seen = np.random.default_rng(seed), []
    for _ in range(steps):
        if ended:
            (observation, _), ended = env.reset(), False
        else:
            action = generator.integers(2)
            observation, _, terminated, truncated, _ = env.step(action)
            ended = terminated or truncated
        seen.append(None if ended else observation)
    return seen


@pytest.mark.parametrize("make", [Corridor, Gymnasium("CartPole-v1"), Gymnasium("CartPole-v1", action_repeat=2)])
def test_returns_to_any_moment(make):
    env = SeededEpisodes(make(), seed=3)
    env.reset()
    seen = walk(env, 57)
    while seen[-1] is None:  # an episode has ended
        seen = walk(env, 1, ended=True)
    moment = env.moment()
    returned = SeededEpisodes(make(), seed=3, moment=moment)
    returned.reset()
    assert moment["episode"] > 0
    assert len(moment["actions"]) == len(returned.moment()["actions"])
    following, again = env.step(1), returned.step(1)
    assert np.array_equal(following[0], again[0]) and following[1:4] == again[1:4]
    assert np.array_equal(env.reset()[0], returned.reset()[0])  # of the next episode


def test_a_return_to_the_end_of_an_episode_resets_in_the_next_step():
    env = SeededEpisodes(Corridor(), seed=0)
    env.reset()
    while True:
        _, _, terminated, truncated, _ = env.step(1)
        if terminated or truncated:
            break
    returned = SeededEpisodes(Corridor(), seed=0, moment=env.moment())
    returned.reset()
    observation, reward, terminated, truncated, _ = returned.step(0)
    assert np.array_equal(observation, env.reset()[0])
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert np.array_equal(returned.step(1)[0], env.step(1)[0])


def test_episodes_differ_by_number_and_by_seed():
    first, second = SeededEpisodes(Corridor(), seed=0), SeededEpisodes(Corridor(), seed=1)
    seen = [tuple(env.reset()[0]) for env in (first, second) for _ in range(5)]
    assert len(set(seen)) == 10


def test_an_unknown_environment_is_named():
    with pytest.raises(ValueError, match="'CartPole-v99' cannot be made"):
        Gymnasium("CartPole-v99")()
    with pytest.raises(ValueError, match="`action_repeat` must be at least 1"):
        Gymnasium("CartPole-v1", action_repeat=0)


def test_a_package_that_an_environment_lacks_is_named(monkeypatch):
    def lacks(name: str) -> None:
        raise gymnasium.error.DependencyNotInstalled('Box2D is not installed, run `pip install "gymnasium[box2d]"`')

    monkeypatch.setattr(gymnasium, "make", lacks)
    with pytest.raises(ImportError, match=r"'LunarLander-v3' cannot be made: .*pip install 'lightning-fire\[box2d\]'"):
        Gymnasium("LunarLander-v3")()
