"""The example of a pendulum that changes: its environment, when methods act, and the table; at the end as a command."""

import csv
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from pages import script

pytest.importorskip("stable_baselines3")

import gymnasium
import numpy as np

EXAMPLE = Path(__file__).parents[2] / "examples" / "continual_rl.py"


@pytest.fixture
def example(monkeypatch):
    """The example as a module, with tasks of 2 rollouts of 512 timesteps."""
    module = script("examples/continual_rl.py")
    for name, value in {"ENVIRONMENTS": 32, "STEPS": 16, "ROLLOUTS": 2, "TIMESTEPS": 1024, "LENGTH": 20}.items():
        monkeypatch.setattr(module, name, value)
    return module


def test_the_pendulum_is_that_of_gymnasium(example):
    ours = example.ChangingPendulum(4, seed=0, steps=0)
    ours.reset()
    ours.gravity, ours.length, ours.order, ours.signs = 10.0, 1.0, np.arange(3), np.ones(3)
    theirs = [gymnasium.make("Pendulum-v1").unwrapped for _ in range(4)]
    for index, environment in enumerate(theirs):
        environment.reset()
        environment.state = np.array([ours.angle[index], ours.speed[index]])
    for _ in range(15):
        actions = ours.random.integers(0, 3, 4)
        ours.step_async(actions)
        observations, rewards, done, _ = ours.step_wait()
        for index, environment in enumerate(theirs):
            expected, reward, *_ = environment.step(ours.torques[actions[index : index + 1]])
            np.testing.assert_allclose(observations[index] * [1, 1, 4], expected, atol=1e-5)
            assert 8 * (rewards[index] - 1) == pytest.approx(reward, abs=1e-5)
        assert not done.any()


def test_a_change_ends_all_episodes_and_is_a_new_task(example):
    env = example.ChangingPendulum(3, seed=1, steps=10)
    env.reset()
    for step in range(1, 31):
        env.step_async(np.zeros(3, int))
        _, _, done, infos = env.step_wait()
        assert env.task == step // 10
        if step % 10 == 0:
            assert done.all()
            assert all(info["TimeLimit.truncated"] for info in infos)
    judged = example.ChangingPendulum(3, seed=1, steps=0, task=3)
    assert (judged.gravity, judged.length, *judged.order, *judged.signs, *judged.torques) == (
        env.gravity,
        env.length,
        *env.order,
        *env.signs,
        *env.torques,
    )


TOUCHED = {  # parts of the policy that an event changes
    "reset_optimizer": set(),
    "reset_head": {"action_net", "head of values"},
    "full_reset": {"action_net", "head of values", "hidden layers"},
    "shrink_and_perturb": {"action_net", "head of values", "hidden layers"},
    "fire": {"action_net", "head of values", "hidden layers"},
    "fire_procrustes": {"action_net", "head of values", "hidden layers"},
}


@pytest.mark.parametrize("method", TOUCHED)
def test_a_method_acts_at_each_change_and_only_then(example, method, monkeypatch):
    events = []

    class Watched(example.PlasticityCallback):
        def _act(self, time, *options):
            model, optimizer = self.model.policy, self.model.policy.optimizer
            before = {name: value.clone() for name, value in model.state_dict().items()}
            done = super()._act(time, *options)
            moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
            events.append(
                (self.num_timesteps, moved, len(optimizer.state), model.state_dict()["action_net.weight"].clone())
            )
            return done

    monkeypatch.setattr(example, "PlasticityCallback", Watched)
    agent, results = example.agent_of(100), example.Results()
    initial = {name: value.clone() for name, value in agent.policy.state_dict().items()}
    agent.learn(3 * 1024, [results, *example.callbacks_of(method, results)])
    assert [timesteps for timesteps, *_ in events] == [1024, 2048]
    assert len(results.rows) == 3
    part = {"action_net": "action_net", "value_net": "head of values", "mlp_extractor": "hidden layers"}
    for _, moved, state, head in events:
        assert {part[name.split(".")[0]] for name in moved} == TOUCHED[method]
        weights_only = method.startswith("fire")
        assert state == {"reset_optimizer": 0, "reset_head": 8}.get(method, 6 if weights_only else 0)
        assert torch.equal(head, initial["action_net.weight"]) is (method in ("reset_head", "full_reset"))


def test_redo_acts_at_each_change_on_the_last_task(example):
    agent, results = example.agent_of(100), example.Results()
    (callback,) = example.callbacks_of("redo", results)
    seen, record = [], callback._record
    callback._record = lambda values: (values and seen.append((len(results.rows), values))) or record(values)
    agent.learn(3 * 1024, [results, callback])
    assert [rows for rows, _ in seen] == [1, 2]
    assert all(0 <= values["redo/dormant_fraction"] < 1 for _, values in seen)


def test_vanilla_with_its_results_is_the_training_without_callbacks(example):
    alone = example.agent_of(100).learn(3 * 1024)  # each agent seeds the global random state
    watched, results = example.agent_of(100), example.Results()
    watched.learn(3 * 1024, [results, *example.callbacks_of("vanilla", results)])
    for name, value in alone.policy.state_dict().items():
        assert torch.equal(value, watched.policy.state_dict()[name]), name


def test_the_table_is_that_of_the_rows(example, tmp_path, monkeypatch):
    monkeypatch.setattr(example, "LAST", 2)
    for method in ("vanilla", "fire"):
        for seed in (100, 101):
            example.run(method, seed, 3, tmp_path)
    printed = example.report(tmp_path, "vanilla").splitlines()
    rows = list(csv.DictReader((tmp_path / "results.csv").read_text().splitlines()))
    assert len(rows) == 12

    def of_seed(method, seed, tasks):
        chosen = [
            float(row["return"])
            for row in rows
            if (row["method"], int(row["seed"])) == (method, seed) and int(row["task"]) in tasks
        ]
        assert len(chosen) == 2
        return sum(chosen) / 2

    for line, method in zip(printed[2:], ("vanilla", "fire"), strict=True):
        first = [of_seed(method, seed, (0, 1)) for seed in (100, 101)]
        last = [of_seed(method, seed, (1, 2)) for seed in (100, 101)]
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert cells[0] == method
        assert cells[1] == f"{statistics.mean(first):.0f}"
        assert cells[2] == f"{statistics.mean(last):.0f} ± {statistics.stdev(last):.0f}"
        if method == "fire":
            pairs = [last[i] - of_seed("vanilla", seed, (1, 2)) for i, seed in enumerate((100, 101))]
            half = 12.7062 * statistics.stdev(pairs) / 2**0.5  # Student's t with one degree of freedom
            mean = statistics.mean(pairs)
            assert cells[3] == f"{mean:+.0f} ({mean - half:+.0f} to {mean + half:+.0f})"


@pytest.mark.crash
def test_the_command_and_that_a_second_one_trains_nothing_again(tmp_path):
    command = [sys.executable, str(EXAMPLE), str(tmp_path), "--seeds", "2", "--tasks", "1", "--methods", "fire"]

    def run():
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()[:4]

    printed = run()
    assert [line.split(" | ")[0] for line in printed[2:]] == ["| vanilla", "| fire"]
    assert printed[2].split(" | ")[1:3] == printed[3].split(" | ")[1:3]  # nothing has changed in the first task
    assert float(printed[2].split(" | ")[1]) > -500  # learned: random actions have about -1200
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").glob("*.csv")}
    assert len(times) == 4
    assert run() == printed
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert (tmp_path / "continual_rl.png").stat().st_size > 10_000
