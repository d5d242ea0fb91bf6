"""Collector: steps environments, and stores the steps in a replay buffer."""

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor

from lightning_fire.experience.buffer import ReplayBuffer
from lightning_fire.experience.vector import Environment, VectorEnvironments


class Collector:
    """Environments that are stepped together, and the replay buffer of their steps.

    Args:
        environment: Callable that makes an environment; actions in a box are scaled to [−1, 1].
        num_envs: Number of environments.
        seed: Seed of their episodes.
        make_buffer: Callable that makes the buffer from `observation_space` and `action_space` of one environment, and
            `num_envs`.
        reward_clip: Clip the stored rewards at ± this; returns of episodes are unclipped.
        in_processes: Step each in a process of its own.

    Raises:
        ValueError: If the observations or actions of the environment are not arrays or non-negative integers.
    """

    def __init__(
        self,
        environment: Environment,
        num_envs: int,
        seed: int,
        make_buffer: Callable[..., ReplayBuffer],
        reward_clip: float | None = None,
        in_processes: bool = False,
    ):
        self.num_envs, self._clip = num_envs, reward_clip
        seeds = [seed * 1_000_003 + i for i in range(num_envs)]
        self._make_envs = partial(VectorEnvironments, partial(scaled, environment), seeds, in_processes=in_processes)
        self._envs = self._make_envs()
        self.buffer = make_buffer(
            observation_space=self._envs.observation_space, action_space=self.action_space, num_envs=num_envs
        )
        self.steps = 0  # of each environment
        self._returns, self._lengths = [0.0] * num_envs, [0] * num_envs  # of the unfinished episodes
        self._finished: list[tuple[float, int, int]] = []

    @property
    def action_space(self) -> Discrete | Box:
        """Action space of one environment."""
        return self._envs.action_space

    @property
    def environment_steps(self) -> int:
        """Number of steps of all environments together."""
        return self.steps * self.num_envs

    def random_actions(self, generator: np.random.Generator) -> np.ndarray:
        """Draw actions uniformly, `(num_envs, *shape)`."""
        if isinstance(self.action_space, Discrete):
            return generator.integers(self.action_space.n, size=self.num_envs)
        low, high = self.action_space.low, self.action_space.high
        return generator.uniform(low, high, (self.num_envs, *low.shape)).astype(np.float32)

    def observations(self) -> np.ndarray:
        """Return the observations to act on, `(num_envs, *shape)`, with stacked frames `(num_envs, stack, *shape)`."""
        if not self.steps:
            self.buffer.begin(self._envs.observations)
        return self.buffer.latest()

    def step(self, actions: np.ndarray) -> None:
        """Act once in each environment, `(num_envs, *shape)`; after the end of an episode it begins the next instead.

        `observations` must have been called before the first step.
        """
        began = self.buffer.ended.tolist()
        observations, rewards, terminated, truncated = self._envs.step(actions)
        stored = rewards if self._clip is None else np.clip(rewards, -self._clip, self._clip)
        self.buffer.add(actions, stored, terminated, truncated, observations)
        for i, ended in enumerate(self.buffer.ended.tolist()):  # for few environments faster than numpy
            self._returns[i] += float(rewards[i])
            self._lengths[i] += not began[i]
            if ended:
                self._finished.append((self._returns[i], self._lengths[i], self.environment_steps + i + 1))
                self._returns[i], self._lengths[i] = 0.0, 0
        self.steps += 1

    def finished(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the episodes that have ended since the last call: `returns`, `lengths` and `ends` of a `Round`."""
        episodes, self._finished = self._finished, []
        returns, lengths, ends = zip(*episodes, strict=True) if episodes else ((), (), ())
        steps = torch.tensor([lengths, ends], dtype=torch.int64)
        return torch.tensor(returns, dtype=torch.float32), *steps

    def close(self) -> None:
        """Close the environments."""
        self._envs.close()

    def state_dict(self) -> dict[str, Any]:
        """Return plain values and tensors."""
        return {
            "steps": self.steps,
            "returns": list(self._returns),
            "lengths": list(self._lengths),
            "finished": list(self._finished),
            "moments": self._envs.moments() if self.steps else [],
            "buffer": self.buffer.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Restore the result of `state_dict`; return whether the environments are in the same state.

        If they are not deterministic, or have changed, each begins a new episode.
        """
        self.buffer.load_state_dict(state["buffer"])
        self.steps = state["steps"]
        self._returns, self._lengths = list(state["returns"]), list(state["lengths"])
        self._finished = [tuple(episode) for episode in state["finished"]]
        if not self.steps:
            return True
        self.close()
        self._envs = self._make_envs(state["moments"])
        there = self.buffer.newest()
        if np.array_equal(there, self._envs.observations.astype(there.dtype), equal_nan=there.dtype.kind == "f"):
            return True
        self._envs.give_up()
        self.buffer.ended = np.ones(self.num_envs, bool)
        self._returns, self._lengths = [0.0] * self.num_envs, [0] * self.num_envs
        return False


def scaled(environment: Environment) -> gymnasium.Env:
    """Make an environment, with actions in a box scaled to [−1, 1].

    Raises:
        ValueError: If it has actions or observations that cannot be stored.
    """
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
