"""Collector: steps environments and stores the steps in a replay buffer."""

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from torch import Tensor

from lightning_fire.experience.buffer import ReplayBuffer
from lightning_fire.experience.episodes import Environment, make_episodes


class Collector:
    """Environments of `gymnasium.vector`, stepped together, and the replay buffer of their steps.

    The current episode of each and its actions are recorded: after an interruption, an error in a step, or the death of
    a process, new environments continue from there.

    Args:
        environment: Callable that makes an environment; actions in a box are scaled to [−1, 1].
        num_envs: Number of environments.
        seed: Seed of their episodes.
        make_buffer: Callable that makes the buffer from the spaces of one environment and `num_envs`.
        reward_clip: Clip the stored rewards at ± this; returns of episodes are unclipped.
        in_processes: Step each in its own process, which ends with this object or its owner. The steps are the same if
            environments draw only from their own seeds and share nothing.

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
        self.num_envs, self._clip, self._in_processes = num_envs, reward_clip, in_processes
        self._make = partial(make_episodes, environment, os.getpid())
        self._seeds = [seed * 1_000_003 + i for i in range(num_envs)]
        self.environment_steps = 0  # of all together
        self._episodes = [0] * num_envs  # number of the current episode of each
        self._actions: list[list[np.ndarray]] = [[] for _ in range(num_envs)]  # in it
        self._returns = [0.0] * num_envs  # in it
        self._finished: list[tuple[float, int, int]] = []
        self._envs: Any = None  # of gymnasium.vector
        first = self._start(np.zeros(num_envs, bool))
        made: Any = self._envs
        self.action_space: Box | Discrete = made.single_action_space
        self.buffer = make_buffer(
            observation_space=made.single_observation_space, action_space=self.action_space, num_envs=num_envs
        )
        self.buffer.begin(first)

    def random_actions(self, generator: np.random.Generator) -> np.ndarray:
        """Draw actions uniformly, `(num_envs, *shape)`."""
        if isinstance(self.action_space, Discrete):
            return generator.integers(self.action_space.n, size=self.num_envs)
        low, high = self.action_space.low, self.action_space.high
        return generator.uniform(low, high, (self.num_envs, *low.shape)).astype(np.float32)

    def step(self, actions: np.ndarray) -> None:
        """Act once in each environment, `(num_envs, *shape)`; after the end of an episode, start the next one instead.

        `buffer.latest()` are the observations to act on.
        """
        observations, rewards, terminated, truncated = self._step(actions)
        began = self.buffer.ended.tolist()
        stored = rewards if self._clip is None else np.clip(rewards, -self._clip, self._clip)
        self.buffer.add(actions, stored, terminated, truncated, observations)
        for i, ended in enumerate(self.buffer.ended.tolist()):  # for few environments faster than numpy
            if began[i]:
                self._episodes[i], self._actions[i], self._returns[i] = self._episodes[i] + 1, [], 0.0
                continue
            self._actions[i].append(np.array(actions[i]))
            self._returns[i] += float(rewards[i])
            if ended:
                end = self.environment_steps + i + 1
                self._finished.append((self._returns[i], len(self._actions[i]), end))
        self.environment_steps += self.num_envs

    def _step(self, actions: np.ndarray) -> tuple[np.ndarray, ...]:
        try:
            if self._envs is None:
                self._start(self.buffer.ended)
            return self._envs.step(actions)[:4]
        except BaseException:  # an interruption, too, leaves some environments a step ahead, or answers in pipes
            self.close()
            raise

    def finished(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the episodes that have ended since the last call: `returns`, `lengths` and `ends` of a `Rollout`."""
        episodes, self._finished = self._finished, []
        returns, lengths, ends = zip(*episodes, strict=True) if episodes else ((), (), ())
        steps = torch.tensor([lengths, ends], dtype=torch.int64)
        return torch.tensor(returns, dtype=torch.float32), *steps

    def _start(self, ended: np.ndarray) -> np.ndarray:
        """Create the environments, restore their positions, and return their observations."""
        positions = zip(self._seeds, self._episodes, self._actions, ended, strict=True)
        makers = [partial(self._make, *position) for position in positions]
        self._envs = (AsyncVectorEnv if self._in_processes else SyncVectorEnv)(makers, copy=False)
        return self._envs.reset()[0]

    def close(self) -> None:
        """Close the environments; the next step creates new ones at the same position."""
        envs, self._envs = self._envs, None
        if envs is None or not self._in_processes:
            if envs is not None:
                envs.close()
            return
        for process in envs.processes:
            process.terminate()  # a regular close would first wait for answers that may never come
            process.join()
        envs.closed = True

    def state_dict(self) -> dict[str, Any]:
        """Return plain values and tensors."""
        return {
            "steps": self.environment_steps,
            "episodes": list(self._episodes),
            "actions": [torch.from_numpy(np.array(actions)) for actions in self._actions],
            "returns": list(self._returns),
            "finished": list(self._finished),
            "buffer": self.buffer.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Restore the result of `state_dict`; return whether the environments are in the same state.

        If they are not deterministic, or have changed, each starts a new episode.
        """
        self.buffer.load_state_dict(state["buffer"])
        self.environment_steps, self._finished = state["steps"], [tuple(episode) for episode in state["finished"]]
        self._episodes, self._returns = list(state["episodes"]), list(state["returns"])
        self._actions = [list(actions.numpy()) for actions in state["actions"]]
        self.close()
        there, newest = self._start(self.buffer.ended), self.buffer.newest()
        if np.array_equal(newest, there.astype(newest.dtype), equal_nan=newest.dtype.kind == "f"):
            return True
        self.buffer.ended = np.ones(self.num_envs, bool)
        self._actions, self._returns = [[] for _ in self._seeds], [0.0] * self.num_envs
        self.close()
        return False
