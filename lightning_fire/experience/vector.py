"""Several environments that are stepped together, whose states can be restored."""

import os
import random
import signal
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

Environment = Callable[[], gymnasium.Env]


Stepped = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Observations `(num_envs, *shape)`, rewards, terminated, truncated `(num_envs,)`; the next step may overwrite them."""


class VectorEnvironments:
    """Environments of `gymnasium.vector` whose episodes are seeded by their numbers and can be restored.

    The position of each is kept here: after an interruption within a step, an error of an environment or the death of
    its process, new environments continue from it. A step of an environment whose episode has ended begins the next
    one and ignores the action, with reward 0. Processes end with this object, or with its own process.

    Args:
        make: Callable that makes an environment; pickled for its process.
        seeds: Seed of the episodes of each.
        moments: State to begin each from, as returned by `moments()`. Default: its first episode.
        in_processes: Step all at once, each in a process of its own; else one after another. The same steps, of
            environments that draw from their own seeds alone and share nothing.

    Attributes:
        observations: The latest, `(num_envs, *shape)`.
        observation_space: Of one environment.
        action_space: Of one environment.
    """

    def __init__(
        self,
        make: Environment,
        seeds: Sequence[int],
        moments: Sequence[dict[str, Any]] | None = None,
        in_processes: bool = False,
    ):
        self._make, self._seeds, self._in_processes = make, seeds, in_processes
        moments = moments or [{"episode": 0, "actions": (), "ended": False}] * len(seeds)
        self._moments = [{**moment, "actions": list(np.asarray(moment["actions"]))} for moment in moments]
        self._start()
        self.observation_space = self._envs.single_observation_space
        self.action_space = self._envs.single_action_space

    def step(self, actions: np.ndarray) -> Stepped:
        """Act once in each, `(num_envs, *shape)`."""
        try:
            stepped = self._step(actions)
        except (EOFError, OSError) as error:
            if not self._in_processes:
                raise
            warnings.warn(f"A process of an environment has ended ({error!r}); new ones continue.", stacklevel=2)
            stepped = self._step(actions)
        for moment, action, *ended in zip(self._moments, actions, *stepped[2:], strict=True):
            if moment["ended"]:
                moment.update(episode=moment["episode"] + 1, actions=[], ended=False)
            else:
                moment["actions"].append(np.array(action))
                moment["ended"] = any(ended)
        self.observations = stepped[0]
        return stepped

    def moments(self) -> list[dict[str, Any]]:
        """Return the state of each as values and tensors: the episode, its actions so far, and whether it ended."""
        stacked = [np.stack(moment["actions"]) if moment["actions"] else np.empty(0) for moment in self._moments]
        pairs = zip(self._moments, map(torch.from_numpy, stacked), strict=True)
        return [{**moment, "actions": actions} for moment, actions in pairs]

    def give_up(self) -> None:
        """Begin the next episode of each with the next step, which ignores the action."""
        for moment in self._moments:
            moment.update(actions=[], ended=True)
        self.close()

    def close(self) -> None:
        """Close all; the next step has new ones."""
        if self._envs is None:
            return
        envs, self._envs = self._envs, None
        if not self._in_processes:
            return envs.close()
        for process, pipe in zip(envs.processes, envs.parent_pipes, strict=True):
            process.terminate()  # a regular close would first wait for answers that may never come
            process.join()
            if pipe is not None:
                pipe.close()
        envs.closed = True

    def _start(self) -> None:
        moments = zip(self._seeds, self._moments, strict=True)
        makers = [partial(_make, self._make, os.getpid(), seed, **moment) for seed, moment in moments]
        self._envs = (AsyncVectorEnv if self._in_processes else SyncVectorEnv)(makers, copy=False)
        self.observations, _ = self._envs.reset()

    def _step(self, actions: np.ndarray) -> Stepped:
        try:
            if self._envs is None:
                self._start()
            return self._envs.step(actions)[:4]
        except BaseException:  # also an interruption: it leaves some a step ahead, or answers in the pipes
            self.close()
            raise


class SeededEpisodes(gymnasium.Wrapper):
    """Wrapper that seeds each episode by its number; the first reset replays actions, to restore a step of an episode.

    This restores only deterministic environments, without state that is kept beyond an episode, as in wrappers that
    normalise rewards. An `info` is dropped: it can be large, or hold objects that cannot be sent between processes. If
    the first episode, `episode`, has `ended`, the next step begins another one.
    """

    def __init__(
        self, env: gymnasium.Env, seed: int, episode: int = 0, actions: Sequence[Any] = (), ended: bool = False
    ):
        super().__init__(env)
        self._seed, self._next, self._actions, self._ended = seed, episode, actions, ended

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin the next episode; the argument `seed` is not used."""
        observation, _ = self.env.reset(seed=seed_of_episode(self._seed, self._next), options=options)
        for action in self._actions:
            observation = self.env.step(action)[0]
        self._next, self._actions = self._next + 1, ()
        return observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Act; info is empty."""
        if self._ended:
            self._ended = False
            return self.reset()[0], 0.0, False, False, {}
        return *self.env.step(action)[:4], {}


def seed_of_episode(seed: int, number: int) -> int:
    """Return the seed of an episode: a function of the common seed and of its number, counted from 0."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0] >> 1)


def _make(make: Environment, owner: int, seed: int, **moment: Any) -> gymnasium.Env:
    if os.getpid() != owner:
        for name in ("SIGINT", "SIGUSR1", "SIGUSR2"):  # from terminals and clusters they come to all, for the owner
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # or Lightning's handler, which a fork inherits, survives it
        random.seed(seed)  # or all forks draw the same
        np.random.seed(seed % 2**32)
    return SeededEpisodes(make(), seed, **moment)
