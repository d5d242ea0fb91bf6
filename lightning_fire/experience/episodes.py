"""Episodes that can be returned to: each has a seed of its own, and its actions are kept."""

from typing import Any

import gymnasium
import numpy as np
import torch


class Record:
    """Where an environment is: the number of its episode, and the actions since that began.

    Args:
        moment: What `moment()` returned; None: before the first episode.
    """

    def __init__(self, moment: dict[str, Any] | None = None):
        moment = moment or {"episode": -1, "actions": (), "ended": False}
        self.episode, self.ended = moment["episode"], moment["ended"]
        self.actions: list[Any] = list(np.asarray(moment["actions"]))

    def begin(self) -> None:
        """Note that the next episode has begun."""
        self.episode, self.actions, self.ended = self.episode + 1, [], False

    def note(self, action: Any, ended: bool) -> None:
        """Note a step.

        Args:
            action: That was done; a copy is kept.
            ended: Whether the episode has.
        """
        self.actions.append(np.array(action))
        self.ended = ended

    def moment(self) -> dict[str, Any]:
        """Return where this is, as plain values and a tensor."""
        actions = np.stack(self.actions) if self.actions else np.empty(0)
        return {"episode": self.episode, "actions": torch.from_numpy(actions), "ended": self.ended}


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
        self._record = Record()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin the next episode.

        Args:
            seed: Not used: it is a function of the wrapper's own and of the number of the episode.
            options: Of the environment.
        """
        if self._moment is not None:
            moment, self._moment = self._moment, None
            return self._return_to(moment, options)
        self._record.begin()
        return self.env.reset(seed=self._seed_of_episode(), options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Act.

        Args:
            action: Of the action space.
        """
        if self._record.ended:
            observation, info = self.reset()
            return observation, 0.0, False, False, info
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._record.note(action, bool(terminated or truncated))
        return observation, reward, terminated, truncated, info

    def give_up(self) -> None:
        """Begin the next episode with the next step, whatever the action."""
        self._record.ended = True

    def moment(self) -> dict[str, Any]:
        """Return where this is, as plain values and a tensor."""
        return self._record.moment()

    def _return_to(self, moment: dict[str, Any], options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        self._record.episode = moment["episode"] - 1
        self._record.begin()
        observation, info = self.env.reset(seed=self._seed_of_episode(), options=options)
        for action in np.asarray(moment["actions"]):
            observation, _, _, _, info = self.step(action)
        self._record.ended = moment["ended"]  # or given up
        return observation, info

    def _seed_of_episode(self) -> int:
        return seed_of_episode(self._seed, self._record.episode)


def seed_of_episode(seed: int, number: int) -> int:
    """Return the seed with which an episode begins.

    Args:
        seed: Of all episodes.
        number: Of this one, counted from 0.
    """
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0] >> 1)
