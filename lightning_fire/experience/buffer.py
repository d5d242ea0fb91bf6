"""Replay buffer in memory that stores each frame once and writes each step to disk once for all checkpoints."""

import uuid
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete

from lightning_fire.experience.transitions import Transitions


class ReplayBuffer:
    """The last steps, in memory, of several environments stepped together.

    An observation is stored once and stacked with previous ones when sampled; frames from before the start of its
    episode are zeros. A step that starts a new episode and ignores the action (gymnasium's `AutoresetMode.NEXT_STEP`)
    is never sampled.

    With a folder, a checkpoint contains names of files there, which any number of branches can share; each checkpoint
    adds a file with the steps since the previous one. Files of this buffer are deleted when its last two checkpoints do
    not need them; files of an earlier training are never deleted.

    Args:
        capacity: Number of steps to keep, over all environments.
        observation_space: Observation space of one environment. float64 observations are stored as float32.
        action_space: Action space of one environment.
        num_envs: Number of environments.
        stack: Frames that make up an observation.
        folder: Folder for the files of checkpoints.

    Attributes:
        ended: Whether the last step ended the episode of each environment, `(num_envs,)`, bool.
        dtype: Type of a row, which holds one step of all environments.

    Raises:
        ValueError: If `capacity` is not at least one step of each environment, or `stack` or `num_envs` below 1.
    """

    def __init__(
        self,
        capacity: int,
        observation_space: Box,
        action_space: Box | Discrete,
        num_envs: int = 1,
        stack: int = 1,
        folder: Path | None = None,
    ):
        if num_envs < 1 or not 1 <= stack <= 16:
            raise ValueError(f"`num_envs` must be at least 1 and `stack` from 1 to 16, got {num_envs} and {stack}")
        if capacity < num_envs:
            raise ValueError(f"`capacity` must be at least {num_envs}, got {capacity}")
        self.num_envs, self.stack, self.folder = num_envs, stack, folder and folder.resolve()
        self.steps = capacity // num_envs
        action_dtype = np.int64 if isinstance(action_space, Discrete) else np.float32
        self.dtype = np.dtype(
            [
                ("observation", stored_dtype(observation_space), (num_envs, *observation_space.shape)),
                ("action", action_dtype, (num_envs, *(action_space.shape or ()))),
                ("reward", np.float32, (num_envs,)),
                ("terminated", np.bool_, (num_envs,)),
                ("began", np.bool_, (num_envs,)),  # a new episode; the action is ignored
                ("age", np.uint8, (num_envs,)),  # steps of the episode before, at most 255
            ],
            align=True,
        )
        kinds = (f"{name}s {self.dtype[name].shape} {self.dtype[name].base}" for name in ("observation", "action"))
        self._kind = f"{self.steps} steps of {' and '.join(kinds)}"
        self.written = 0  # steps; the observation after the last also has a row
        self.ended = np.zeros(num_envs, bool)
        self._ring = np.zeros(self.steps + stack, self.dtype)  # memory is taken as rows are written
        self._fields = {name: self._ring[name] for name in self.dtype.names or ()}
        self._files: list[tuple[int, int, str]] = []  # of the last checkpoint: steps from, to (excluded), and path
        self._before: set[str] = set()  # files of the checkpoint before it
        self._own: set[str] = set()  # files that this buffer has written

    def __len__(self) -> int:
        return min(self.written, self.steps) * self.num_envs

    def begin(self, observations: np.ndarray) -> None:
        """Store the first observations, `(num_envs, *shape)`."""
        row = self._ring[self.written % len(self._ring)]
        row["observation"], row["age"] = observations, 0

    def add(self, actions: Any, rewards: Any, terminated: Any, truncated: Any, next_observations: Any) -> None:
        """Store the result of an action in each environment: arrays `(num_envs, *shape)` or `(num_envs,)`.

        If an episode has ended, `next_observations` are its last ones.
        """
        fields, now, then = self._fields, self.written % len(self._ring), (self.written + 1) % len(self._ring)
        fields["action"][now], fields["reward"][now] = actions, rewards
        fields["terminated"][now], fields["began"][now] = terminated, self.ended
        age = fields["age"][now]
        fields["observation"][then], fields["age"][then] = next_observations, (age + (age < 255)) * ~self.ended
        self.ended = np.logical_or(terminated, truncated)
        self.written += 1

    def newest(self) -> np.ndarray:
        """Return the observations after the last step, not stacked, `(num_envs, *shape)`."""
        return self._fields["observation"][self.written % len(self._ring)]

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
            generator: Generator of the draw; the draw does not depend on `n_step`.
            n_step: Number of steps of the discounted returns; fewer at the end of the episode or buffer.
            discount: γ, used with `n_step > 1`.

        Raises:
            ValueError: If the buffer has no steps to draw.
        """
        steps, environments = self._draw(number, generator)
        before, actions = self._observations(steps, environments), self._of("action", steps, environments)
        taken: Any = 1
        discounts: tuple[Any, ...] = ()
        if n_step == 1:
            rewards, terminated = (self._of(name, steps, environments) for name in ("reward", "terminated"))
        else:
            rewards, terminated, taken = self._returns(steps, environments, discount ** np.arange(n_step))
            discounts = ((discount**taken).astype(np.float32),)
        after = self._observations(steps + taken, environments)
        return Transitions(*map(torch.from_numpy, (before, actions, rewards, after, terminated, *discounts)))

    def _returns(self, steps: np.ndarray, environments: np.ndarray, discounts: np.ndarray) -> tuple[Any, ...]:
        """Return for some steps the discounted sums of rewards, whether the episode terminates, and steps taken."""
        ahead = steps[:, None] + np.arange(len(discounts))  # (number, n_step)
        there = np.minimum(ahead, self.written - 1), environments[:, None]
        rewards, terminated, began = (self._of(name, *there) for name in ("reward", "terminated", "began"))
        began[:, 0] = False  # sampled steps do not begin an episode
        counts = np.logical_and.accumulate(~began & (ahead < self.written), axis=1)
        sums = (rewards * counts * discounts).sum(1, dtype=np.float64).astype(np.float32)
        return sums, (terminated & counts).any(1), counts.sum(1)

    def _draw(self, number: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draw until there are enough valid steps; the few that start an episode are invalid."""
        steps, environments = np.empty(0, np.int64), np.empty(0, np.int64)
        for _ in range(1000):
            missing = number - len(steps)
            if not missing or not self.written:
                break
            drawn = generator.integers(max(0, self.written - self.steps), self.written, missing)
            of = generator.integers(0, self.num_envs, missing)
            possible = ~self._of("began", drawn, of)
            steps, environments = np.append(steps, drawn[possible]), np.append(environments, of[possible])
        if len(steps) < number:
            raise ValueError("the replay buffer has no steps to draw")
        return steps, environments

    def _observations(self, steps: np.ndarray, environments: np.ndarray) -> np.ndarray:
        if self.stack == 1:
            return self._of("observation", steps, environments)
        back = np.arange(self.stack - 1, -1, -1)
        frames = self._of("observation", steps[:, None] - back, environments[:, None])
        frames[self._of("age", steps, environments)[:, None] < back] = 0  # before the start of the episode
        return frames

    def _of(self, field: str, steps: np.ndarray, environments: np.ndarray) -> np.ndarray:
        return self._fields[field][steps % len(self._ring), environments]

    def _rows(self, first: int) -> list[np.ndarray]:
        """Return the bytes of the rows from a step to the newest: two parts if they wrap around the ring buffer."""
        start, stop = first % len(self._ring), (self.written + 1) % len(self._ring)
        parts = [self._ring[start:stop]] if start < stop else [self._ring[start:], self._ring[:stop]]
        return [rows.view(np.uint8) for rows in parts]

    def state_dict(self) -> dict[str, Any]:
        """Return plain values and tensors: the steps, or the names of the files that hold them."""
        oldest = max(0, self.written - self.steps - self.stack + 1)
        if self.folder is None:
            parts: list[Any] = [(oldest, self.written, torch.from_numpy(np.concatenate(self._rows(oldest))))]
        else:
            parts = self._write(oldest, self.folder)
        return {"written": self.written, "kind": self._kind, "ended": self.ended.tolist(), "parts": parts}

    def _write(self, oldest: int, folder: Path) -> list[tuple[int, int, str]]:
        """Write the steps since the last checkpoint; delete files that are no longer needed; return the others."""
        self._files = [part for part in self._files if part[1] > oldest]
        first = self._files[-1][1] if self._files else oldest  # whose row was not complete yet
        if not self._files or first < self.written:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{uuid.uuid4().hex}.replay"
            with open(path, "wb") as file:
                for rows in self._rows(first):
                    rows.tofile(file)
            self._own.add(str(path))
            self._files.append((first, self.written, str(path)))
        needed = {path for *_, path in self._files}
        for old in self._own - needed - self._before:
            Path(old).unlink(missing_ok=True)
        self._own, self._before = self._own & (needed | self._before), needed
        return self._files

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`.

        Raises:
            ValueError: If its sizes or types differ from those of this buffer.
            FileNotFoundError: If one of its files does not exist.
        """
        if state["kind"] != self._kind:
            raise ValueError(f"the checkpoint's replay buffer keeps {state['kind']}, and this one {self._kind}")
        parts = [(first, self._read(kept)) for first, _, kept in state["parts"]]
        for first, rows in parts:
            self._ring[np.arange(first, first + len(rows)) % len(self._ring)] = rows
        self.written, self.ended = state["written"], np.array(state["ended"], bool)
        self._files = [tuple(part) for part in state["parts"] if isinstance(part[2], str)]
        self._before = {path for *_, path in self._files}

    def _read(self, kept: torch.Tensor | str) -> np.ndarray:
        if not isinstance(kept, str):
            return kept.numpy().view(self.dtype)
        path = Path(kept)
        if not path.is_file():
            path = (self.folder or path.parent) / path.name  # the folder may have moved
        if not path.is_file():
            raise FileNotFoundError(
                f"the checkpoint's replay is neither at {kept} nor at {path}: only the last two checkpoints of a"
                " training keep theirs; has the folder been moved?"
            )
        return np.memmap(path, self.dtype, "r")


def stored_dtype(space: Box) -> np.dtype:
    """Return the type of stored observations: that of their space, with float32 for float64."""
    return np.dtype(np.float32) if space.dtype == np.float64 else space.dtype
