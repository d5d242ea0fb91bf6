"""Episodes that can be returned to: each has a seed of its own, and its actions are kept."""

from typing import Any

import gymnasium
import numpy as np
import torch


class SeededEpisodes(gymnasium.Wrapper):
    """Seeds each episode by its number, and remembers its actions: enough to return to any moment of it.

    The step after the end of an episode begins the next one, whatever the action, with reward 0.

    Deterministic environments alone return to where they were; what is kept beyond an episode, as by wrappers that
    normalise rewards, is not. Put it outermost.

    Args:
        env: The environment.
        seed: Episodes of different seeds differ.
        moment: What `moment()` returned: the first reset returns there, and not to the beginning of an episode.
    """

    def __init__(self, env: gymnasium.Env, seed: int, moment: dict[str, Any] | None = None):
        super().__init__(env)
        self._seed, self._moment = seed, moment
        self._episode = -1
        self._actions: list[Any] = []
        self._awaits_reset = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin the next episode.

        Args:
            seed: Not used: it is a function of the wrapper's own and of the number of the episode.
            options: Of the environment.
        """
        self._awaits_reset = False
        if self._moment is not None:
            moment, self._moment = self._moment, None
            return self._return_to(moment, options)
        self._episode, self._actions = self._episode + 1, []
        return self.env.reset(seed=self._seed_of_episode(), options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Act.

        Args:
            action: Of the action space.
        """
        if self._awaits_reset:
            observation, info = self.reset()
            return observation, 0.0, False, False, info
        self._actions.append(action)
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._awaits_reset = terminated or truncated
        return observation, reward, terminated, truncated, info

    def give_up(self) -> None:
        """Begin the next episode with the next step, whatever the action."""
        self._awaits_reset = True

    def moment(self) -> dict[str, Any]:
        """Return where this is, as plain values and a tensor."""
        actions = np.stack(self._actions) if self._actions else np.empty(0)
        return {"episode": self._episode, "actions": torch.from_numpy(actions)}

    def _return_to(self, moment: dict[str, Any], options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        self._episode, self._actions = moment["episode"], []
        observation, info = self.env.reset(seed=self._seed_of_episode(), options=options)
        for action in moment["actions"].numpy():
            observation, _, _, _, info = self.step(action)
        return observation, info

    def _seed_of_episode(self) -> int:
        return seed_of_episode(self._seed, self._episode)


def seed_of_episode(seed: int, number: int) -> int:
    """Return the seed with which an episode begins.

    Args:
        seed: Of all episodes.
        number: Of this one, counted from 0.
    """
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0] >> 1)
