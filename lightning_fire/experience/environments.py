"""Environments of the paper's reinforcement learning experiments, and of gymnasium in general."""

from dataclasses import dataclass, field
from typing import Any

import gymnasium

_HINTS = {
    "ale_py": "pip install 'lightning-fire[atari]' for Atari games",
    "humanoid_bench": "HumanoidBench is not in the registry: its installation is in docs/reference/data.md",
    "shimmy": "pip install 'shimmy[dm-control]' for dm_control's environments",
    "Box2D": "pip install 'lightning-fire[rl]' does without a compiler",
}


@dataclass(frozen=True)
class Gymnasium:
    """Factory of an environment registered with gymnasium; composite observations become one array.

    Args:
        name: Name such as `CartPole-v1`; `package:Name-v0` imports a package first.
        options: Keyword arguments of the environment.
        action_repeat: Number of repetitions of each action, whose rewards are summed (SimBa: 2).
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    action_repeat: int = 1

    def __post_init__(self) -> None:
        if self.action_repeat < 1:
            raise ValueError(f"`action_repeat` must be at least 1, got {self.action_repeat}")

    def __call__(self) -> gymnasium.Env:
        """Return the environment.

        Raises:
            ImportError: If its package is not installed; the message has an installation hint.
            ValueError: If the name is not registered.
        """
        try:
            env = gymnasium.make(self.name, **self.options)
        except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
            known = (hint for package, hint in _HINTS.items() if package in f"{self.name} {error}")
            hint = next(known, "install the package it comes with")
            raise ImportError(f"the environment {self.name!r} cannot be made: {error}; {hint}") from error
        except gymnasium.error.Error as error:
            raise ValueError(f"the environment {self.name!r} cannot be made: {error}") from error
        if isinstance(env.observation_space, gymnasium.spaces.Dict | gymnasium.spaces.Tuple):
            env = gymnasium.wrappers.FlattenObservation(env)
        return env if self.action_repeat == 1 else RepeatedAction(env, self.action_repeat)


@dataclass(frozen=True)
class Atari:
    """Factory of an Atari 2600 game, preprocessed as in Dopamine.

    Grey frames of 84×84 bytes, each the maximum of the last two of the four that an action lasts; sticky actions; the
    smallest set of actions; an episode ends with the game, not with a life.

    Args:
        game: Name such as `Asterix`, `BeamRider` or `DemonAttack`.
        sticky: Probability, in each frame, that the last action is repeated instead of the new one.
        max_steps: Actions after which an episode is cut short (half an hour of play).
        render_mode: `"rgb_array"` to record videos.
    """

    game: str
    sticky: float = 0.25
    max_steps: int = 27000
    render_mode: str | None = None

    def __call__(self) -> gymnasium.Env:
        """Return the environment.

        Raises:
            ImportError: If ale-py or OpenCV is not installed.
            ValueError: If the game does not exist.
        """
        options: dict[str, Any] = {"frameskip": 1, "repeat_action_probability": self.sticky, "full_action_space": False}
        options |= {"max_num_frames_per_episode": None, "render_mode": self.render_mode}
        env = Gymnasium(f"ale_py:ALE/{self.game}-v5", options)()
        env = gymnasium.wrappers.AtariPreprocessing(env, noop_max=0, frame_skip=4, screen_size=84)
        return gymnasium.wrappers.TimeLimit(env, self.max_steps)


class RepeatedAction(gymnasium.Wrapper):
    """Wrapper that repeats each action, unless the episode ends before, and sums the rewards."""

    def __init__(self, env: gymnasium.Env, times: int):
        super().__init__(env)
        self._times = times

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Act."""
        total = 0.0
        for _ in range(self._times):
            observation, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return observation, total, terminated, truncated, info
