"""Environments whose episodes are seeded by their numbers and can be restored."""

import os
import random
import signal
from collections.abc import Callable, Sequence
from typing import Any, SupportsFloat

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

Environment = Callable[[], gymnasium.Env]


class SeededEpisodes(gymnasium.Wrapper):
    """Wrapper that seeds each episode by its number; the first reset replays actions to restore a position.

    This restores only deterministic environments without state across episodes, such as that of wrappers that normalize
    rewards. `info` is dropped: it can be large, or contain objects that cannot be sent between processes. If the first
    episode, `episode`, has `ended`, the next step starts another one.
    """

    def __init__(
        self, env: gymnasium.Env, seed: int, episode: int = 0, actions: Sequence[Any] = (), ended: bool = False
    ):
        super().__init__(env)
        self._seed, self._next, self._actions, self._ended = seed, episode, actions, ended

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start the next episode; the argument `seed` is ignored."""
        observation, _ = self.env.reset(seed=seed_of_episode(self._seed, self._next), options=options)
        for action in self._actions:
            observation = self.env.step(action)[0]
        self._next, self._actions = self._next + 1, ()
        return observation, {}

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Act; info is empty."""
        if self._ended:
            self._ended = False
            return self.reset()[0], 0.0, False, False, {}
        return *self.env.step(action)[:4], {}


def seed_of_episode(seed: int, number: int) -> int:
    """Return the seed of an episode: a function of the common seed and of its number, counted from 0."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0] >> 1)


def make_episodes(environment: Environment, owner: int, seed: int, *position: Any) -> SeededEpisodes:
    """Create an environment of a training, in the process `owner` or in a child."""
    if os.getpid() != owner:
        for name in {"SIGINT", "SIGUSR1", "SIGUSR2"} & set(dir(signal)):  # sent to all processes by terminals, clusters
            signal.signal(getattr(signal, name), signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # otherwise a fork inherits Lightning's handler
        random.seed(seed)  # otherwise all forks draw the same
        np.random.seed(seed % 2**32)
    return SeededEpisodes(scaled(environment), seed, *position)


def scaled(environment: Environment) -> gymnasium.Env:
    """Make an environment, with actions in a box scaled to [−1, 1]; a ValueError if steps of it cannot be stored."""
    env = environment()
    observations, actions = env.observation_space, env.action_space
    if not isinstance(observations, Box):
        raise ValueError(
            f"observations must be arrays (Box), got {observations}: gymnasium.wrappers.FlattenObservation makes them"
        )
    if isinstance(actions, Discrete) and actions.start == 0:
        return env
    if not isinstance(actions, Box) or not np.isfinite([actions.low, actions.high]).all():
        raise ValueError(f"actions must be whole numbers from 0 (Discrete) or in a bounded box (Box), got {actions}")
    if np.all(actions.low == -1) and np.all(actions.high == 1):
        return env
    return gymnasium.wrappers.RescaleAction(env, np.float32(-1), np.float32(1))
