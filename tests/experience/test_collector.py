"""Environments that go in step, in this process and in processes of their own, and return to where they were."""

import gc
import os
import signal
import sys
from functools import partial
from multiprocessing import active_children
from pathlib import Path

import numpy as np
import processes
import pytest
import torch
from environments import Corridor, Slope
from killed_processes import wait_for_end_of
from torch.utils._pytree import tree_map

from lightning_fire.experience import Collector, Gymnasium, ReplayBuffer
from lightning_fire.experience.episodes import SeededEpisodes


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


class Lucky(Corridor):
    """Draws from the global generator."""

    def _see(self):
        return np.random.normal(size=3)


BOTH = pytest.mark.parametrize("in_processes", [False, True], ids=["in turn", "in processes"])


def made(make=Corridor, in_processes: bool = False) -> Collector:
    return Collector(make, 3, 0, partial(ReplayBuffer, 600), in_processes=in_processes)


def go(collector: Collector, number: int, seed: int = 0) -> None:
    """Take steps, with other actions for another seed."""
    for step in range(number):
        collector.step(collector.random_actions(np.random.default_rng([seed, step])))


def content(collector: Collector) -> dict:
    """The position of the environments, and all steps and observations so far."""
    return tree_map(lambda leaf: leaf.tolist() if isinstance(leaf, torch.Tensor) else leaf, collector.state_dict())


@pytest.mark.parametrize("make", [Corridor, Slope, lambda: Corridor(frames=True), WithLambda, Gymnasium("CartPole-v1")])
def test_both_ways_are_the_same_steps(make):
    contents = []
    for in_processes in (False, True):
        collector = made(make, in_processes)
        go(collector, 60)
        contents.append(content(collector))
    assert contents[0] == contents[1] and contents[0]["finished"]


@pytest.mark.parametrize("make", [Corridor, Gymnasium("CartPole-v1"), Gymnasium("CartPole-v1", action_repeat=2)])
@BOTH
@pytest.mark.parametrize("number", [0, 1, 40, "end"])
def test_one_continues_where_the_other_was(make, in_processes, number):
    collector, other = (made(make, way) for way in (in_processes, not in_processes))
    go(collector, 40 if number == "end" else number)
    while number == "end" and not collector.buffer.ended.any():  # the next step begins an episode
        go(collector, 1)
    assert other.load_state_dict(collector.state_dict())
    for each in (collector, other):
        go(each, 40, seed=1)
    assert content(collector) == content(other)


def test_episodes_differ_by_number_and_by_seed():
    episodes = [SeededEpisodes(Corridor(), seed, episode) for seed in (0, 1) for episode in range(5)]
    assert len({tuple(episode.reset()[0]) for episode in episodes}) == 10


@pytest.mark.filterwarnings("ignore::UserWarning")  # gymnasium warns with the traceback
@BOTH
def test_an_error_in_an_environment_is_that_error_here(in_processes):
    collector = made(Broken, in_processes)
    go(collector, 2)
    for _ in range(2):  # it stays where it is, for an exception's checkpoint
        before = content(collector)
        with pytest.raises(ArithmeticError, match="the floor is wet"):
            go(collector, 1)
        assert content(collector) == before


def interrupt(*args):
    raise KeyboardInterrupt


def interrupt_after_some(collector: Collector, patch) -> None:
    for name in ("step", "reset"):
        patch.setattr(collector._envs.envs[1], name, interrupt)


def interrupt_before_the_answers(collector: Collector, patch) -> None:
    patch.setattr(collector._envs, "step_wait", interrupt)


def kill_a_process(collector: Collector, patch) -> None:
    process = collector._envs.processes[1]
    os.kill(process.pid, signal.SIGTERM)
    process.join()


@pytest.mark.parametrize("number", [0, 1, 29])
@pytest.mark.parametrize("failure", [interrupt_after_some, interrupt_before_the_answers, kill_a_process])
def test_a_step_that_fails_has_not_been(number, failure, monkeypatch):
    whole, collector = (made(in_processes=failure is not interrupt_after_some) for _ in range(2))
    for each in (whole, collector):
        go(each, number)
    failure(collector, monkeypatch)
    with pytest.raises((KeyboardInterrupt, EOFError, OSError)):
        go(collector, 1, seed=2)
    for each in (whole, collector):
        go(each, 40, seed=1)
    assert content(whole) == content(collector)


def test_processes_draw_different_numbers_from_the_global_generator():
    assert len(np.unique(made(Lucky, in_processes=True).buffer.newest())) == 9


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_processes_end_with_what_needs_them():
    before = {child.pid for child in active_children()}
    collector = made(in_processes=True)
    pids = {child.pid for child in active_children()} - before
    assert len(pids) == 3
    for pid in pids:
        os.kill(pid, signal.SIGINT)  # as Ctrl+C does; the training still wants a checkpoint of where they are
    go(collector, 5)
    del collector
    gc.collect()
    for pid in pids:
        wait_for_end_of(pid, 10)


OWNERS = """
import os, signal, sys
from functools import partial
from multiprocessing import active_children, set_start_method
from environments import Corridor
from lightning_fire.experience import Collector, ReplayBuffer

if __name__ == "__main__":
    set_start_method("fork", force=True)  # the way by which handlers of signals are inherited
    for number in range(2):
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, lambda *_: None)  # as Lightning's handler
            collector = Collector(Corridor, 3, 0, partial(ReplayBuffer, 100), in_processes=True)
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
