"""The replay buffer against a list of episodes."""

from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lightning_fire.experience import ReplayBuffer


def made(capacity: int, observations: tuple = (2, 2), dtype=np.uint8, **options) -> ReplayBuffer:
    return ReplayBuffer(capacity, Box(0, 255, observations, dtype), Discrete(9), **options)


class Listed:
    """The slow obvious buffer: every step of every environment in a list, with its frames written out."""

    def __init__(self, capacity: int, num_envs: int, stack: int):
        self.keep, self.stack = capacity // num_envs, stack
        self.steps = [[] for _ in range(num_envs)]  # None: an episode begins

    def frames(self, episode: list) -> np.ndarray:
        padded = [np.zeros_like(episode[0])] * (self.stack - 1) + episode
        return np.stack(padded[-self.stack :]) if self.stack > 1 else episode[-1]

    def possible(self, n_step: int, discount: float) -> set:
        """Transitions with rewards summed until their episode ends, or after the newest step."""
        found = set()
        for steps in (steps[-self.keep :] for steps in self.steps):
            for number, step in enumerate(steps):
                if step is None:
                    continue
                (before, action, total, after, terminated, over), taken = step, 1
                while taken < n_step and number + taken < len(steps) and not over:
                    *_, reward, after, terminated, over = steps[number + taken]
                    total, taken = total + discount**taken * reward, taken + 1
                discounts = [np.float32(discount**taken)] if n_step > 1 else []
                found.add(key(before, action, np.float32(total), after, terminated, *discounts))
        return found


def play(
    buffer: ReplayBuffer,
    steps: int,
    generator: np.random.Generator,
    listed: Listed | None = None,
    chance: float = 0.2,
) -> None:
    """Let episodes of random lengths, which end with some chance, go through a buffer, and through the list."""
    num_envs = buffer.num_envs
    frame = lambda: generator.integers(1, 255, (num_envs, 2, 2)).astype(np.uint8)  # noqa: E731
    if not buffer.written:
        buffer.begin(frame())
    episodes, ended = [[seen] for seen in buffer.newest().copy()], buffer.ended
    for _ in range(steps):
        following, actions, rewards = frame(), *generator.integers(0, 9, (2, num_envs))
        terminated = ~ended & (generator.random(num_envs) < chance)
        truncated = ~ended & ~terminated & (generator.random(num_envs) < chance / 2)
        if listed is not None:
            assert np.array_equal(buffer.latest(), np.stack([listed.frames(episode) for episode in episodes]))
        buffer.add(actions, rewards, terminated, truncated, following)
        for i in range(num_envs) if listed else ():
            before = listed.frames(episodes[i])
            episodes[i] = [following[i]] if ended[i] else [*episodes[i], following[i]]
            over = terminated[i] or truncated[i]
            step = (before, actions[i], rewards[i], listed.frames(episodes[i]), terminated[i], over)
            listed.steps[i].append(None if ended[i] else step)
        ended = terminated | truncated


def key(*parts: np.ndarray) -> bytes:
    return b"|".join(np.asarray(part).tobytes() for part in parts)


def keys(transitions) -> list:
    arrays = [tensor.numpy() for tensor in transitions if tensor is not None]
    return [key(*(array[i] for array in arrays)) for i in range(len(arrays[0]))]


def drawn(buffer: ReplayBuffer, number: int = 64, seed: int = 0, *returns) -> list:
    return keys(buffer.sample(number, np.random.default_rng(seed), *returns))


@settings(max_examples=25, deadline=None)
@given(
    num_envs=st.integers(1, 3),
    stack=st.sampled_from([1, 2, 4, 16]),
    steps=st.integers(1, 200),
    capacity=st.integers(1, 100),
    chance=st.sampled_from([0.2, 0.01]),
    seed=st.integers(0, 1000),
    n_step=st.sampled_from([1, 2, 5, 40]),
)
@example(num_envs=1, stack=16, steps=200, capacity=32, chance=0.01, seed=0, n_step=1)
@example(num_envs=2, stack=4, steps=200, capacity=90, chance=0.2, seed=0, n_step=3)
@example(num_envs=2, stack=1, steps=50, capacity=90, chance=0.01, seed=0, n_step=40)
def test_draws_the_steps_that_a_list_holds_and_all_of_them(num_envs, stack, steps, capacity, chance, seed, n_step):
    """Rewards are whole numbers and the discount 1/2, so that sums are exact."""
    buffer = made(capacity * num_envs, num_envs=num_envs, stack=stack)
    listed = Listed(capacity * num_envs, num_envs, stack)
    play(buffer, steps, np.random.default_rng(seed), listed, chance)
    possible = listed.possible(n_step, 0.5)
    found = set(drawn(buffer, 20 * num_envs * capacity, 0, n_step, 0.5)) if possible else set()
    assert found <= possible
    assert len(possible - found) <= 0.001 * len(possible) + 1  # 20 draws for each
    assert len(buffer) == min(steps, capacity) * num_envs


def test_draws_uniformly():
    buffer = made(64, (1,), np.float32)
    buffer.begin(np.zeros((1, 1)))
    for step in range(100):
        buffer.add(np.array([step]), np.zeros(1), np.zeros(1, bool), np.zeros(1, bool), np.full((1, 1), step))
    actions = buffer.sample(64_000, np.random.default_rng(0)).actions
    counts = torch.bincount(actions, minlength=100)[36:]
    assert len(actions.unique()) == 64
    assert (counts - 1000).abs().max() < 5 * 1000**0.5
    assert torch.equal(actions, buffer.sample(64_000, np.random.default_rng(0), 3, 0.9).actions)


def test_a_million_atari_frames_take_less_than_8_gigabytes():
    buffer = made(1_000_000, (84, 84), stack=4)
    assert buffer._ring.nbytes < 8e9
    assert buffer.dtype.itemsize < 84 * 84 + 32


MORE = [
    (np.array([i, i]), np.array([i, -i]), np.array([i % 3 == 0, False]), np.zeros(2, bool), np.full((2, 2, 2), i))
    for i in range(30)
]


@pytest.mark.parametrize("in_files", [False, True])
@pytest.mark.parametrize("steps", [0, 1, 30, 79, 80, 300])
@pytest.mark.parametrize(("stack", "chance"), [(3, 0.2), (16, 0.02)])
def test_continues_from_a_checkpoint(tmp_path, in_files, steps, stack, chance):
    folder = tmp_path / "replay" if in_files else None
    buffer, resumed = (made(80, num_envs=2, stack=stack, folder=folder) for _ in range(2))
    play(buffer, steps // 2, np.random.default_rng(0), chance=chance)
    buffer.state_dict()
    play(buffer, steps - steps // 2, np.random.default_rng(1), chance=chance)
    torch.save(buffer.state_dict(), tmp_path / "state")
    expected = drawn(buffer) if steps > 1 else []
    for step in MORE:  # what an interrupted training did after its checkpoint
        buffer.add(*step)
    resumed.load_state_dict(torch.load(tmp_path / "state", weights_only=True))
    assert (drawn(resumed) if steps > 1 else []) == expected
    for step in MORE:
        resumed.add(*step)
    assert drawn(resumed, seed=1) == drawn(buffer, seed=1)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.glob("*.replay")}


def test_keeps_the_files_of_the_last_two_checkpoints_and_no_others(tmp_path):
    buffer, generator, states = made(32, folder=tmp_path), np.random.default_rng(0), []
    for steps in (40, 10, 0, 10, 19, 40, 5):
        play(buffer, steps, generator)
        states.append((buffer.state_dict(), drawn(buffer)))
        for old, expected in states[-2:]:
            other = made(32, folder=tmp_path / "else")
            other.load_state_dict(old)
            assert drawn(other) == expected
        needed = {path for state, _ in states[-2:] for *_, path in state["parts"]}
        assert set(files(tmp_path)) == needed and len(needed) <= 4
    rows = [len(content) // buffer.dtype.itemsize for content in files(tmp_path).values()]
    assert sorted(rows) == [6, 33]  # written once, but for the last
    with pytest.raises(FileNotFoundError, match="only the last two checkpoints"):
        buffer.load_state_dict(states[0][0])


@pytest.mark.parametrize("names", ["abc", "aaa"], ids=["folders", "one folder"])
def test_branches_read_the_files_of_their_start_and_change_none(tmp_path, names):
    start, first, second = (made(32, stack=2, folder=tmp_path / name) for name in names)
    play(start, 150, np.random.default_rng(0))
    state, expected = start.state_dict(), drawn(start)
    contents = files(tmp_path / "a")
    for branch in (first, second):
        branch.load_state_dict(state)
        assert drawn(branch) == expected
    for _ in range(4):
        play(first, 40, np.random.default_rng(1))
        first.state_dict()
    assert set(drawn(first)) != set(expected) and drawn(second) == expected
    assert contents.items() <= files(tmp_path / "a").items()
    (tmp_path / "a").rename(tmp_path / "moved")
    moved = made(32, stack=2, folder=tmp_path / "moved")
    moved.load_state_dict(state)
    assert drawn(moved) == expected


def test_a_load_that_fails_changes_nothing(tmp_path):
    buffer, other = (made(32, folder=tmp_path / name) for name in "ab")
    for _ in range(2):
        play(buffer, 10, np.random.default_rng(0))
        state = buffer.state_dict()
    play(other, 35, np.random.default_rng(1))
    expected = drawn(other)
    Path(state["parts"][1][2]).unlink()
    with pytest.raises(FileNotFoundError):
        other.load_state_dict(state)
    assert other.written == 35 and drawn(other) == expected


def test_errors():
    with pytest.raises(ValueError, match="`capacity` must be at least 2, got 1"):
        made(1, num_envs=2)
    with pytest.raises(ValueError, match="`stack` from 1 to 16"):
        made(100, stack=0)
    with pytest.raises(ValueError, match="no steps to draw"):
        made(100).sample(1, np.random.default_rng(0))
    message = r"keeps 32 steps of observations \(1, 2, 2\) uint8 and actions \(1,\) int64, and this one {}"
    for other, difference in ((made(64), "64 steps of"), (made(32, (3, 2)), r"32 steps of observations \(1, 3, 2\)")):
        with pytest.raises(ValueError, match=message.format(difference)):
            other.load_state_dict(made(32).state_dict())
