"""Environments that go in step, in this process and in processes of their own, and return to where they were."""

import gc
import os
import signal
import sys
from multiprocessing import active_children
from pathlib import Path

import gymnasium
import numpy as np
import processes
import pytest
from environments import Corridor, Slope
from killed_processes import wait_for_end_of

from lightning_fire.experience import Gymnasium, VectorEnvironments


class Broken(Corridor):
    """Fails at its third step."""

    def step(self, action):
        if self.time == 2:
            raise ArithmeticError("the floor is wet")
        return super().step(action)


class WithLambda(Corridor):
    """Returns an `info` that cannot be pickled."""

    def step(self, action):
        return *super().step(action)[:4], {"open": lambda: None}


def steps(envs, number: int, seed: int = 0) -> list[tuple]:
    space, generator = envs.action_space, np.random.default_rng(seed)
    seen = []
    for _ in range(number):
        if isinstance(space, gymnasium.spaces.Discrete):
            actions = generator.integers(space.n, size=3)
        else:
            actions = generator.uniform(-1, 1, (3, *space.shape)).astype(np.float32)
        seen.append(tuple(np.array(part) for part in envs.step(actions)))
    return seen


def equal(first: list[tuple], second: list[tuple]) -> bool:
    return len(first) == len(second) and all(
        np.array_equal(a, b) for one, other in zip(first, second, strict=True) for a, b in zip(one, other, strict=True)
    )


BOTH = pytest.mark.parametrize("in_processes", [False, True], ids=["in turn", "in processes"])


def both(make=Corridor) -> list[VectorEnvironments]:
    return [VectorEnvironments(make, [3, 4, 5], in_processes=way) for way in (False, True)]


@pytest.mark.parametrize("make", [Corridor, Slope, lambda: Corridor(frames=True), WithLambda, Gymnasium("CartPole-v1")])
def test_both_ways_are_the_same_steps(make):
    first, second = both(make)
    assert np.array_equal(first.observations, second.observations)
    seen = steps(first, 60)
    assert equal(seen, steps(second, 60))
    assert any(terminated.any() or truncated.any() for _, _, terminated, truncated in seen)


@pytest.mark.parametrize("make", [Corridor, Gymnasium("CartPole-v1"), Gymnasium("CartPole-v1", action_repeat=2)])
@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("number", [0, 1, 23, 40])
def test_one_continues_where_the_other_was(make, before, number):
    envs = VectorEnvironments(make, [3, 4, 5], in_processes=before)
    steps(envs, number)
    others = VectorEnvironments(make, [3, 4, 5], envs.moments(), not before)
    assert np.array_equal(others.observations, envs.observations)
    assert equal(steps(envs, 40, 1), steps(others, 40, 1))
    for each in (envs, others):
        each.give_up()
    assert np.array_equal(envs.step([0, 1, 0])[0], others.step([1, 1, 1])[0])  # new episodes


@BOTH
def test_a_return_to_the_end_of_an_episode_begins_the_next_one_with_the_next_step(in_processes):
    envs = VectorEnvironments(Corridor, [0], in_processes=in_processes)
    while not any(envs.step(np.array([1]))[2:]):
        pass
    returned = VectorEnvironments(Corridor, [0], envs.moments(), in_processes)
    assert envs.moments()[0]["ended"] and np.array_equal(returned.observations, envs.observations)
    observations, *rest = returned.step(np.array([0]))
    assert np.array_equal(observations, envs.step(np.array([1]))[0]) and observations[0, 0] == 0
    assert [part.tolist() for part in rest] == [[0.0], [False], [False]]
    assert np.array_equal(returned.step(np.array([1]))[0], envs.step(np.array([1]))[0])


def test_episodes_differ_by_number_and_by_seed():
    envs, seen = VectorEnvironments(Corridor, [0, 1]), set()
    for _ in range(5):
        seen |= {tuple(observation) for observation in envs.observations}
        envs.give_up()
        envs.step(np.zeros(2, int))
    assert len(seen) == 10


def begun(number: int, make=Corridor) -> list[VectorEnvironments]:
    """Return both ways after some steps."""
    ways = both(make)
    for envs in ways:
        steps(envs, number)
    return ways


def continue_alike(one, other) -> bool:
    def plain(moments: list[dict]) -> list[dict]:
        return [{**moment, "actions": moment["actions"].tolist()} for moment in moments]

    alike = plain(one.moments()) == plain(other.moments())
    return alike and equal(steps(one, 40, 1), steps(other, 40, 1)) and plain(one.moments()) == plain(other.moments())


@pytest.mark.filterwarnings("ignore::UserWarning")  # gymnasium warns with the traceback
@BOTH
def test_an_error_in_an_environment_is_that_error_here(in_processes):
    envs = VectorEnvironments(Broken, [0, 1], in_processes=in_processes)
    for _ in range(2):
        envs.step([0, 0])
    for _ in range(2):  # it stays where it is, for an exception's checkpoint
        with pytest.raises(ArithmeticError, match="the floor is wet"):
            envs.step([0, 0])
        assert [len(moment["actions"]) for moment in envs.moments()] == [2, 2]


@pytest.mark.parametrize("number", [0, 1, 29])
def test_an_interrupted_step_has_not_been(number, monkeypatch):
    whole, envs = begun(number)

    def interrupted(actions):
        envs._envs.step_async(actions)
        raise KeyboardInterrupt

    monkeypatch.setattr(envs._envs, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        envs.step([1, 1, 1])
    assert continue_alike(whole, envs)


@pytest.mark.parametrize("number", [0, 1, 29])
def test_a_step_that_was_interrupted_after_some_environments_has_not_been(number, monkeypatch):
    envs, whole = begun(number)

    def interrupted(*action):
        raise KeyboardInterrupt

    monkeypatch.setattr(envs._envs.envs[1], "step", interrupted)
    monkeypatch.setattr(envs._envs.envs[1], "reset", interrupted)
    with pytest.raises(KeyboardInterrupt):
        envs.step([1, 1, 1])
    assert continue_alike(whole, envs)


def test_a_process_that_was_killed_is_replaced():
    before = {child.pid for child in active_children()}
    whole, envs = begun(29)
    os.kill(max({child.pid for child in active_children()} - before), signal.SIGTERM)
    with pytest.warns(UserWarning, match="A process of an environment has ended"):
        assert continue_alike(whole, envs)


def test_processes_draw_different_numbers_from_the_global_generator():
    class Lucky(Corridor):
        def _see(self):
            return np.random.normal(size=3)

    assert len(np.unique(VectorEnvironments(Lucky, [3, 4, 5], in_processes=True).observations)) == 9


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_processes_end_with_what_needs_them():
    before = {child.pid for child in active_children()}
    envs = VectorEnvironments(Corridor, [3, 4, 5], in_processes=True)
    pids = {child.pid for child in active_children()} - before
    assert len(pids) == 3
    for pid in pids:
        os.kill(pid, signal.SIGINT)  # as Ctrl+C does; the training still wants a checkpoint of where they are
    assert len(steps(envs, 5)) == 5
    del envs
    gc.collect()
    for pid in pids:
        wait_for_end_of(pid, 10)


OWNERS = """
import os, signal, sys
from multiprocessing import active_children, set_start_method
from environments import Corridor
from lightning_fire.experience import VectorEnvironments

if __name__ == "__main__":
    set_start_method("fork", force=True)  # the way by which handlers of signals are inherited
    for number in range(2):
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, lambda *_: None)  # as Lightning's handler
            envs = VectorEnvironments(Corridor, [3, 4, 5], in_processes=True)
            with open(f"pids{number}", "w") as file:
                file.write(" ".join(str(child.pid) for child in active_children()))
            sys.exit() if number else os.kill(os.getpid(), signal.SIGKILL)
        os.wait()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_processes_end_with_their_owner_however_it_ends(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    processes.run(OWNERS, tmp_path)
    pids = [int(pid) for number in range(2) for pid in Path(f"pids{number}").read_text().split()]
    assert len(pids) == 6
    for pid in pids:
        wait_for_end_of(pid, 10)
