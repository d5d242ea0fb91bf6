"""A vector of pendulums whose task can change: an environment for Stable-Baselines3."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor

LENGTH = 200  # steps of an episode, as in gymnasium


class ChangingPendulum(VecEnv):
    """A vector of pendulums, with a new task after every `steps` steps of each.

    A task is gymnasium's Pendulum with three torques to choose from. Each task has its own order and signs of the
    observations, order of the torques, gravity (8 to 12) and length (0.8 to 1.2). The reward is gymnasium's divided by
    8, plus 1: mostly in [0, 1].

    Args:
        number: Number of pendulums.
        seed: Seed of the tasks and, together with `task`, of the initial states of episodes.
        steps: Steps of each pendulum in a task; 0: the task does not change.
        task: Number of the first task, counted from 0.
        length: Steps per episode.
        speed: Largest initial angular speed, in radians per second; the initial angle is any.
    """

    def __init__(self, number: int, seed: int, steps: int, task: int = 0, length: int = LENGTH, speed: float = 1.0):
        super().__init__(number, spaces.Box(-2, 2, (3,), np.float32), spaces.Discrete(3))
        self.random, self.task_seed, self.steps = np.random.default_rng([seed, task, 1]), seed, steps
        self.length_of_episode, self.first_speed = length, speed
        self.done_steps, self.rewards = 0, list[np.ndarray]()  # as in gymnasium, of each step
        self.begin(task)

    def begin(self, task: int) -> None:
        """Start a task."""
        random = np.random.default_rng([self.task_seed, task])
        self.task, self.order, self.signs = task, random.permutation(3), random.choice([-1, 1], 3)
        self.torques = random.permutation([-2.0, 0.0, 2.0])
        self.gravity, self.length = random.uniform(8, 12), random.uniform(0.8, 1.2)

    def reset(self) -> np.ndarray:
        """Start an episode in each; return the observations, shape `(number, 3)`."""
        self.angle, self.speed = np.zeros((2, self.num_envs))
        self.age = np.zeros(self.num_envs, int)
        self._restart(np.ones(self.num_envs, bool))
        if self.steps:
            self.age = self.random.integers(0, self.length_of_episode, self.num_envs)  # not all end at once
        return self._observations()

    def _restart(self, chosen: np.ndarray) -> None:
        self.angle[chosen] = self.random.uniform(-np.pi, np.pi, chosen.sum())
        self.speed[chosen] = self.random.uniform(-self.first_speed, self.first_speed, chosen.sum())
        self.age[chosen] = 0

    def _observations(self) -> np.ndarray:
        seen = np.stack([np.cos(self.angle), np.sin(self.angle), self.speed / 4], axis=1)
        return np.asarray(self.signs * seen[:, self.order], np.float32)

    def step_async(self, actions: np.ndarray) -> None:
        """Set the actions of the next step, each 0, 1 or 2."""
        self.torque = self.torques[actions]

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """Take the step; return observations, rewards, flags of ended episodes, and their info."""
        from_top = (self.angle + np.pi) % (2 * np.pi) - np.pi
        cost = from_top**2 + 0.1 * self.speed**2 + 0.001 * self.torque**2
        acceleration = 1.5 * self.gravity / self.length * np.sin(self.angle) + 3 / self.length**2 * self.torque
        self.speed = np.clip(self.speed + 0.05 * acceleration, -8, 8)
        self.angle = self.angle + 0.05 * self.speed
        self.age, self.done_steps = self.age + 1, self.done_steps + 1
        self.rewards.append(-cost)
        change = self.steps and self.done_steps % self.steps == 0
        done = (self.age >= self.length_of_episode) | bool(change)
        infos: list[dict[str, Any]] = [{} for _ in done]
        if done.any():
            last = self._observations()
            for i in np.flatnonzero(done):  # algorithms then use the value of the last observation
                infos[i] = {"terminal_observation": last[i], "TimeLimit.truncated": True}
            self._restart(done)
        if change:
            self.begin(self.task + 1)
        return self._observations(), (1 - cost / 8).astype(np.float32), done, infos

    @torch.no_grad()
    def play(self, policy: Callable[[Tensor], Tensor]) -> tuple[float, Tensor]:
        """Play one episode in each; return the mean return, as in gymnasium, and all observations.

        Args:
            policy: Returns actions, shape `(number,)`, for observations `(number, 3)`.
        """
        before, seen = len(self.rewards), [torch.as_tensor(self.reset())]
        for _ in range(self.length_of_episode):
            self.step_async(policy(seen[-1]).numpy())
            seen.append(torch.as_tensor(self.step_wait()[0]))
        return self.length_of_episode * float(np.mean(self.rewards[before:])), torch.cat(seen[:-1])

    def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> list[bool]:
        """Return False for each: no pendulum is wrapped."""
        return [False] * self.num_envs

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Return an attribute for each pendulum."""
        return [getattr(self, attr_name, None)] * self.num_envs

    def env_method(self, *args: Any, **options: Any) -> Any:
        """Raise a NotImplementedError."""
        raise NotImplementedError("Stable-Baselines3 does not ask for it")

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Raise a NotImplementedError."""
        self.env_method()

    def close(self) -> None:
        """Do nothing: there are no resources."""
