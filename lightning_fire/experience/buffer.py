"""Replay buffer that stores each frame once, in memory or in files that several trainings share."""

import weakref
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from lightning_fire.experience.segment import files_of, new_file, segment_state, stored_rows
from lightning_fire.experience.transitions import Transitions

_SEGMENTS = 16  # of which a full buffer consists


class ReplayBuffer:
    """The last steps of several environments that are stepped together.

    An observation is stored once, and stacked with those before it when it is drawn: frames from before the beginning
    of its episode are zeros. A step of an environment that begins a new episode and ignores the action
    (gymnasium's `AutoresetMode.NEXT_STEP`) is never drawn.

    With a folder, the buffer lies in files there. A full file is never changed: a training that continues from
    a checkpoint reads those of the training that wrote it, and any number of branches share them, on disk and in RAM.
    Files that have left the buffer are deleted as soon as its last two checkpoints do not need them, and with the
    buffer itself those that no checkpoint needs; those of the training before it are never deleted.

    Args:
        capacity: Steps to keep, of all environments together.
        observation_shape: Shape of an observation of one environment.
        observation_dtype: Type of an observation.
        action_shape: Shape of an action of one environment; `()` if discrete.
        action_dtype: Type of an action.
        num_envs: Number of environments.
        stack: Frames that make up an observation.
        folder: Folder for the files; None: all is in memory, and in the checkpoint.

    Attributes:
        ended: Whether the last step ended the episode of each environment, `(num_envs,)`, bool.
        dtype: Type of a row, which holds one step of all environments.

    Raises:
        ValueError: If `capacity` is not at least 32 steps of each environment, or `stack` or `num_envs` below 1.
    """

    def __init__(
        self,
        capacity: int,
        observation_shape: tuple[int, ...],
        observation_dtype: Any = np.float32,
        action_shape: tuple[int, ...] = (),
        action_dtype: Any = np.int64,
        num_envs: int = 1,
        stack: int = 1,
        folder: Path | None = None,
    ):
        if num_envs < 1 or not 1 <= stack <= 16:
            raise ValueError(f"`num_envs` must be at least 1 and `stack` from 1 to 16, got {num_envs} and {stack}")
        self.steps = capacity // num_envs
        if self.steps < 2 * _SEGMENTS:
            raise ValueError(f"`capacity` must be at least {2 * _SEGMENTS * num_envs}, got {capacity}")
        self.num_envs, self.stack, self.folder = num_envs, stack, folder and folder.resolve()
        self.dtype = np.dtype(
            [
                ("observation", observation_dtype, (num_envs, *observation_shape)),
                ("action", action_dtype, (num_envs, *action_shape)),
                ("reward", np.float32, (num_envs,)),
                ("terminated", np.bool_, (num_envs,)),
                ("began", np.bool_, (num_envs,)),  # a new episode; the action is ignored
                ("age", np.uint8, (num_envs,)),  # steps of the episode before, at most 255
            ],
            align=True,
        )
        self.size_of_segment = -(-self.steps // _SEGMENTS)
        self.written = 0  # steps; the observation after the last also has a row
        self.ended = np.zeros(num_envs, bool)
        # of a buffer in memory: the steps that are kept, the segment that fills, and frames before the oldest step
        slots = _SEGMENTS + 1 + -(-stack // self.size_of_segment) if folder is None else 0
        self._ring = np.zeros(slots * self.size_of_segment, self.dtype)  # memory is taken as rows are written
        self._segments: dict[int, np.ndarray] = {}  # rows by number
        self._needed: deque[set[Path]] = deque(maxlen=2)  # by the last checkpoints
        self._own: set[Path] = set()  # files that this buffer has made
        weakref.finalize(self, _delete, self._own, self._needed)

    def __len__(self) -> int:
        return min(self.written, self.steps) * self.num_envs

    def begin(self, observations: np.ndarray) -> None:
        """Store the first observations, `(num_envs, *shape)`."""
        rows, i = self._row(self.written)
        rows["observation"][i], rows["age"][i] = observations, 0

    def add(
        self,
        actions: ArrayLike,
        rewards: ArrayLike,
        terminated: ArrayLike,
        truncated: ArrayLike,
        next_observations: ArrayLike,
    ) -> None:
        """Store the result of an action in each environment: `(num_envs, *shape)` or `(num_envs,)` each.

        `next_observations` are the last of an episode, if it has ended.
        """
        rows, i = self._row(self.written)
        rows["action"][i], rows["reward"][i] = actions, rewards
        rows["terminated"][i], rows["began"][i] = terminated, self.ended
        age = rows["age"][i]
        older = age + (age < 255)
        older[self.ended] = 0
        rows, i = self._row(self.written + 1)
        rows["observation"][i], rows["age"][i] = next_observations, older
        self.ended = np.logical_or(terminated, truncated)
        self.written += 1
        if self.written % self.size_of_segment == 0:
            oldest = self.written - self.steps - self.stack
            self._segments = {i: rows for i, rows in self._segments.items() if (i + 1) * self.size_of_segment > oldest}
            _delete(self._own, [*self._needed, files_of(self._segments.values())])

    def newest(self) -> np.ndarray:
        """Return the observations after the last step, not stacked, `(num_envs, *shape)`."""
        rows, i = self._row(self.written)
        return rows["observation"][i]

    def empty_observations(self) -> np.ndarray:
        """Return zeros of the shape and type of the result of `latest`."""
        kind = self.dtype["observation"]
        stacked = (self.stack,) if self.stack > 1 else ()
        return np.zeros((self.num_envs, *stacked, *kind.shape[1:]), kind.base)

    def latest(self) -> np.ndarray:
        """Return the observations to act on, `(num_envs, *shape)`, with `stack > 1` `(num_envs, stack, *shape)`."""
        if self.stack == 1:
            return self.newest().copy()
        return self._observations(np.full(self.num_envs, self.written), np.arange(self.num_envs))

    def sample(
        self, number: int, generator: np.random.Generator, n_step: int = 1, discount: float = 1.0
    ) -> Transitions:
        """Draw steps uniformly, with replacement.

        Args:
            number: Number of steps.
            generator: Generator of the draw, which does not depend on `n_step`.
            n_step: Number of steps of the discounted returns; fewer, where the episode or the buffer ends.
            discount: γ, used with `n_step > 1`.

        Raises:
            ValueError: If the buffer has no steps to draw.
        """
        steps, environments = self._draw(number, generator)
        before, (actions,) = self._observations(steps, environments), self._gather(("action",), steps, environments)
        if n_step == 1:
            rewards, terminated = self._gather(("reward", "terminated"), steps, environments)
            after = self._observations(steps + 1, environments)
            return Transitions(*map(torch.from_numpy, (before, actions, rewards, after, terminated)))
        rewards, terminated, taken = self._returns(steps, environments, discount ** np.arange(n_step))
        after, discounts = self._observations(steps + taken, environments), (discount**taken).astype(np.float32)
        return Transitions(*map(torch.from_numpy, (before, actions, rewards, after, terminated, discounts)))

    def _returns(self, steps: np.ndarray, environments: np.ndarray, discounts: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return for some steps the discounted sums of rewards, whether the episode terminates, and steps taken."""
        ahead = steps[:, None] + np.arange(len(discounts))  # (number, n_step)
        there = np.minimum(ahead, self.written - 1).ravel()
        found = self._gather(("reward", "terminated", "began"), there, environments.repeat(len(discounts)))
        rewards, terminated, began = (field.reshape(ahead.shape) for field in found)
        began[:, 0] = False  # sampled steps do not begin an episode
        counts = np.logical_and.accumulate(~began & (ahead < self.written), axis=1)
        sums = (rewards * counts * discounts).sum(1, dtype=np.float64).astype(np.float32)
        return sums, (terminated & counts).any(1), counts.sum(1)

    def _draw(self, number: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draw until there are enough: few steps are invalid because they begin an episode."""
        steps, environments = np.empty(0, np.int64), np.empty(0, np.int64)
        for _ in range(1000):
            missing = number - len(steps)
            if not missing or not self.written:
                break
            drawn = generator.integers(max(0, self.written - self.steps), self.written, missing)
            of = generator.integers(0, self.num_envs, missing)
            possible = ~self._gather(("began",), drawn, of)[0]
            steps, environments = np.append(steps, drawn[possible]), np.append(environments, of[possible])
        if len(steps) < number:
            raise ValueError("the replay buffer has no steps to draw")
        return steps, environments

    def _observations(self, steps: np.ndarray, environments: np.ndarray) -> np.ndarray:
        if self.stack == 1:
            return self._gather(("observation",), steps, environments)[0]
        back = np.arange(self.stack - 1, -1, -1)
        missing = self._gather(("age",), steps, environments)[0][:, None] < back  # from before the episode
        numbers = np.where(missing, steps[:, None], steps[:, None] - back)
        (frames,) = self._gather(("observation",), numbers.ravel(), environments.repeat(self.stack))
        frames = frames.reshape(len(steps), self.stack, *frames.shape[1:])
        frames[missing] = 0
        return frames

    def _gather(self, fields: Iterable[str], steps: np.ndarray, environments: np.ndarray) -> list[np.ndarray]:
        """Return fields of some steps of some environments, both `(n,)`: `(n, *shape)` each."""
        if self.folder is None:
            return [self._ring[field][steps % len(self._ring), environments] for field in fields]
        kinds = [self.dtype[field] for field in fields]
        found = [np.empty((len(steps), *kind.shape[1:]), kind.base) for kind in kinds]
        segments = steps // self.size_of_segment
        for index, rows in self._segments.items():
            (here,) = np.nonzero(segments == index)
            if len(here):
                for field, array in zip(fields, found, strict=True):
                    array[here] = rows[field][steps[here] - index * self.size_of_segment, environments[here]]
        return found

    def _new_segment(self, index: int) -> np.ndarray:
        """Return rows to be written, of a new file or in memory."""
        if self.folder is not None:
            return new_file(self.folder, self.dtype, self.size_of_segment)
        first = index * self.size_of_segment % len(self._ring)
        return self._ring[first : first + self.size_of_segment]

    def _row(self, step: int) -> tuple[np.ndarray, int]:
        """Return the segment that holds one of the last steps, and its row there."""
        index, row = divmod(step, self.size_of_segment)
        if index not in self._segments:
            self._segments[index] = rows = self._new_segment(index)
            self._own |= files_of([rows])
        return self._segments[index], row

    def state_dict(self) -> dict[str, Any]:
        """Return plain values and tensors: the steps, or the names of the files that hold them."""
        number = self.written + 1  # of rows
        segments = {i: segment_state(rows, number - i * len(rows)) for i, rows in self._segments.items()}
        self._needed.append(files_of(self._segments.values()))
        _delete(self._own, [*self._needed, files_of(self._segments.values())])
        return {
            "written": self.written,
            "steps": self.steps,
            "rows": str(self.dtype),
            "ended": self.ended.tolist(),
            "segments": segments,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`.

        Raises:
            ValueError: If its sizes or types differ from those of this buffer.
            FileNotFoundError: If one of its files does not exist.
        """
        if state["steps"] != self.steps:
            raise ValueError(
                f"the checkpoint's replay keeps {state['steps'] * self.num_envs} steps, and this one"
                f" {self.steps * self.num_envs}"
            )
        if state["rows"] != str(self.dtype):
            raise ValueError("the checkpoint's replay holds other observations, actions or numbers of environments")
        segments = {}
        for i, kept in state["segments"].items():
            rows, number = stored_rows(kept, self.dtype, self.folder), state["written"] + 1 - i * self.size_of_segment
            shared = self.folder is not None and "file" in kept and number > self.size_of_segment  # never written again
            if not shared:
                rows, stored = self._new_segment(i), rows
                rows[:number] = stored[:number]
            segments[i] = rows
        self.written, self.ended, self._segments = state["written"], np.array(state["ended"], bool), segments
        self._needed.append({Path(kept["file"]) for kept in state["segments"].values() if "file" in kept})
        self._own |= files_of(rows for rows in segments.values() if rows.flags.writeable)


def _delete(own: set[Path], kept: Iterable[set[Path]]) -> None:
    """Delete files that no buffer needs."""
    for path in own - set().union(*kept):
        path.unlink(missing_ok=True)
        own.discard(path)
