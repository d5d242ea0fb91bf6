"""Several environments that go in step: one after another in this process, or each in a process of its own."""

import os
import signal
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode

from lightning_fire.experience.episodes import SeededEpisodes

Moment = dict[str, Any] | None


class Stepped(NamedTuple):
    """What came of a step, of all environments; arrays may be overwritten by the next step.

    Attributes:
        observations: `(num_envs, *shape)`.
        rewards: `(num_envs,)`.
        terminated: `(num_envs,)`.
        truncated: `(num_envs,)`.
    """

    observations: Sequence[np.ndarray]
    rewards: Sequence[float]
    terminated: Sequence[bool]
    truncated: Sequence[bool]


class InTurn:
    """Steps one environment after another.

    Args:
        make: Makes one.
        seeds: Of the episodes of each.
        moments: Where each is to begin, as `moments()` told; None: with its first episode.
    """

    def __init__(self, make: Callable[[], gymnasium.Env], seeds: Sequence[int], moments: Sequence[Moment]):
        self._envs = [SeededEpisodes(make(), *of) for of in zip(seeds, moments, strict=True)]
        self.observation_space, self.action_space = self._envs[0].observation_space, self._envs[0].action_space

    def reset(self) -> Sequence[np.ndarray]:
        """Begin; return the observations, `(num_envs, *shape)`."""
        return [env.reset()[0] for env in self._envs]

    def step(self, actions: np.ndarray) -> Stepped:
        """Act once in each.

        Args:
            actions: `(num_envs, *shape)`.
        """
        results = [env.step(action)[:4] for env, action in zip(self._envs, actions, strict=True)]
        return Stepped(*zip(*results, strict=True))

    def moments(self) -> list[dict[str, Any]]:
        """Return where each is."""
        return [env.moment() for env in self._envs]

    def give_up(self) -> None:
        """Begin the next episode of each with the next step, whatever the action."""
        for env in self._envs:
            env.give_up()

    def close(self) -> None:
        """Close all."""
        for env in self._envs:
            env.close()


class InProcesses:
    """Steps all environments at once, each in a process of its own.

    The same steps as `InTurn`, by gymnasium's `AsyncVectorEnv`. The processes end with this object, or with its own
    process.

    Args:
        make: Makes one; goes to its process pickled.
        seeds: Of the episodes of each.
        moments: Where each is to begin, as `moments()` told; None: with its first episode.
    """

    def __init__(self, make: Callable[[], gymnasium.Env], seeds: Sequence[int], moments: Sequence[Moment]):
        owner = os.getpid()
        makers = [partial(_make, make, owner, *of) for of in zip(seeds, moments, strict=True)]
        # whoever has ended resets itself
        self._envs = AsyncVectorEnv(makers, copy=False, autoreset_mode=AutoresetMode.DISABLED)
        self.observation_space = self._envs.single_observation_space
        self.action_space = self._envs.single_action_space

    def reset(self) -> Sequence[np.ndarray]:
        """Begin; return the observations, `(num_envs, *shape)`."""
        return self._envs.reset()[0]

    def step(self, actions: np.ndarray) -> Stepped:
        """Act once in each.

        Args:
            actions: `(num_envs, *shape)`.
        """
        return Stepped(*self._envs.step(actions)[:4])

    def moments(self) -> list[dict[str, Any]]:
        """Return where each is."""
        return list(self._envs.call("moment"))

    def give_up(self) -> None:
        """Begin the next episode of each with the next step, whatever the action."""
        self._envs.call("give_up")

    def close(self) -> None:
        """End the processes."""
        self._envs.close()


class _Silent(gymnasium.Wrapper):
    """Tells nothing but what is stored: an `info` can be large, or of things that no other process can have."""

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        return self.env.reset(**options)[0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return *self.env.step(action)[:4], {}


def _make(make: Callable[[], gymnasium.Env], owner: int, seed: int, moment: Moment) -> gymnasium.Env:
    if os.getpid() != owner:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # from a terminal it comes to all, and the owner still needs this
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # or Lightning's handler, which a fork inherits, survives it
    return _Silent(SeededEpisodes(make(), seed, moment))
