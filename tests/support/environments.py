"""Small environments whose behaviour is known."""

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class Corridor(gymnasium.Env):
    """Corridor of random length: action 1 moves on, action 0 stays; the end pays 2. All observations differ.

    Args:
        limit: Steps after which an episode is cut short.
        noise: Draws from outside, so that it is not deterministic.
        frames: Observations are 2×2 frames of bytes.
    """

    def __init__(self, limit: int = 20, noise: np.random.Generator | None = None, frames: bool = False):
        self.observation_space = Box(0, 255, (2, 2), np.uint8) if frames else Box(-np.inf, np.inf, (3,), np.float64)
        self.action_space = Discrete(2)
        self.limit, self.noise, self.frames = limit, noise, frames

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.length, self.place, self.time = int(self.np_random.integers(3, 9)), 0, 0
        return self._see(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.place, self.time = self.place + int(action), self.time + 1
        there = self.place >= self.length
        return self._see(), 2.0 * there, there, not there and self.time >= self.limit, {}

    def _see(self):
        if self.frames:
            return np.full((2, 2), 10 * self.length + self.place + 1, np.uint8)
        shown = self.noise.normal() if self.noise else self.np_random.normal()
        return np.array([self.place, self.length, shown])


class Slope(gymnasium.Env):
    """Push a point to the middle: the reward is minus its distance. Actions in [−2, 2]."""

    observation_space = Box(-np.inf, np.inf, (1,), np.float32)
    action_space = Box(-2, 2, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.time = self.np_random.uniform(-1, 1), 0
        return np.array([self.place], np.float32), {}

    def step(self, action):
        self.place, self.time = float(np.clip(self.place + 0.1 * action[0], -2, 2)), self.time + 1
        return np.array([self.place], np.float32), -abs(self.place), False, self.time >= 20, {}
