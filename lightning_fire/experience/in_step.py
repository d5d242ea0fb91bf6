"""Several environments that go in step: one after another in this process, or each in a process of its own."""

import contextlib
import os
import random
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode

from lightning_fire.experience.episodes import Record, SeededEpisodes

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

    The same steps as `InTurn`, by gymnasium's `AsyncVectorEnv`, of environments that draw from their own seeds alone
    and share nothing. Where each is, is known here: after an interruption in the midst of a step, an error of an
    environment or the death of a process, new processes go on from there. They end with this object, or with its own
    process.

    Args:
        make: Makes one; goes to its process pickled.
        seeds: Of the episodes of each.
        moments: Where each is to begin, as `moments()` told; None: with its first episode.
    """

    def __init__(self, make: Callable[[], gymnasium.Env], seeds: Sequence[int], moments: Sequence[Moment]):
        self._make, self._seeds = make, seeds
        self._records = [Record(moment) for moment in moments]
        self._envs: AsyncVectorEnv | None = None
        self._start()
        self.observation_space = self._envs.single_observation_space
        self.action_space = self._envs.single_action_space

    def _start(self) -> None:
        # without tensors, which torch would send by way of files
        moments = [{**moment, "actions": np.asarray(moment["actions"])} for moment in self.moments()]
        begun = [moment if moment["episode"] >= 0 else None for moment in moments]
        makers = [partial(_make, self._make, os.getpid(), *of) for of in zip(self._seeds, begun, strict=True)]
        # whoever has ended resets itself
        self._envs = AsyncVectorEnv(makers, copy=False, autoreset_mode=AutoresetMode.DISABLED)
        self._returning = True  # by the next reset

    def reset(self) -> Sequence[np.ndarray]:
        """Begin; return the observations, `(num_envs, *shape)`."""
        with self._closed_by_errors():
            return self._reset()

    def _reset(self) -> Sequence[np.ndarray]:
        if self._envs is None:
            self._start()
        observations, _ = self._envs.reset()
        for record in self._records:
            if not self._returning or record.episode < 0:
                record.begin()
        self._returning = False
        return observations

    def step(self, actions: np.ndarray) -> Stepped:
        """Act once in each.

        Args:
            actions: `(num_envs, *shape)`.
        """
        try:
            stepped = self._step(actions)
        except (EOFError, OSError) as error:
            warnings.warn(f"A process of an environment has ended ({error!r}); new ones go on.", stacklevel=2)
            stepped = self._step(actions)
        for record, action, *ended in zip(self._records, actions, stepped.terminated, stepped.truncated, strict=True):
            if record.ended:
                record.begin()
            else:
                record.note(action, any(ended))
        return stepped

    def _step(self, actions: np.ndarray) -> Stepped:
        with self._closed_by_errors():
            if self._envs is None:
                self._reset()
            return Stepped(*self._envs.step(actions)[:4])

    @contextlib.contextmanager
    def _closed_by_errors(self) -> Iterator[None]:
        try:
            yield
        except BaseException:  # also an interruption: it leaves answers in the pipes
            self.close()
            raise

    def moments(self) -> list[dict[str, Any]]:
        """Return where each is."""
        return [record.moment() for record in self._records]

    def give_up(self) -> None:
        """Begin the next episode of each with the next step, whatever the action."""
        self._envs.call("give_up")
        for record in self._records:
            record.ended = True

    def close(self) -> None:
        """End the processes; the next step has new ones."""
        if self._envs is None:
            return
        envs, self._envs = self._envs, None
        for process in envs.processes:  # its own way would first wait for answers that may never come
            process.terminate()
        for process in envs.processes:
            process.join()
        for pipe in envs.parent_pipes:
            if pipe is not None:
                pipe.close()
        envs.closed = True


class _Silent(gymnasium.Wrapper):
    """Tells nothing but what is stored: an `info` can be large, or of things that no other process can have."""

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        return self.env.reset(**options)[0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return *self.env.step(action)[:4], {}


def _make(make: Callable[[], gymnasium.Env], owner: int, seed: int, moment: Moment) -> gymnasium.Env:
    if os.getpid() != owner:
        for name in ("SIGINT", "SIGUSR1", "SIGUSR2"):  # from terminals and clusters they come to all, for the owner
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # or Lightning's handler, which a fork inherits, survives it
        random.seed(seed)  # or all forks draw the same
        np.random.seed(seed % 2**32)
    return _Silent(SeededEpisodes(make(), seed, moment))
