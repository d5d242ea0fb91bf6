"""Environments of gymnasium by name."""

import sys

import gymnasium
import pytest

from lightning_fire.experience import Atari, Gymnasium


def test_an_unknown_environment_is_named():
    with pytest.raises(ValueError, match="'CartPole-v99' cannot be made"):
        Gymnasium("CartPole-v99")()
    with pytest.raises(ValueError, match="`action_repeat` must be at least 1"):
        Gymnasium("CartPole-v1", action_repeat=0)


def test_a_package_that_a_game_lacks_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(
        ImportError, match=r"'ale_py:ALE/Pong-v5' cannot be made: .*pip install 'lightning-fire\[atari\]'"
    ):
        Atari("Pong")()


def test_a_package_that_an_environment_lacks_is_named(monkeypatch):
    def lacks(name: str) -> None:
        raise gymnasium.error.DependencyNotInstalled('Box2D is not installed, run `pip install "gymnasium[box2d]"`')

    monkeypatch.setattr(gymnasium, "make", lacks)
    with pytest.raises(ImportError, match=r"'LunarLander-v3' cannot be made: .*pip install 'lightning-fire\[rl\]'"):
        Gymnasium("LunarLander-v3")()
