"""Duration of a step of several environments, sequential and in one process each, side by side.

    python benchmarks/environment_processes.py [--only cartpole asterix lunar_lander humanoid] [--json FILE]

The two are `vectorization_mode` "sync" and "async" of `ReplayDataModule`. Both get the same random actions, and return
the same. Milliseconds of a step of all environments and of storing it, medians over the repetitions; the ratio of the
medians, in brackets the smallest and largest of a repetition.
Processes help as far as there are cores; the network, which acts and learns in between, is not counted.
"""

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from machine import parser_of, publish
from paired import in_turn, ratio, seconds

from lightning_fire.experience import Atari, Collector, Gymnasium, ReplayBuffer

ENVIRONMENTS: dict[str, Callable[[], gymnasium.Env]] = {
    "cartpole": Gymnasium("CartPole-v1"),
    "asterix": Atari("Asterix"),
    "lunar_lander": Gymnasium("LunarLander-v3"),
    "humanoid": Gymnasium("shimmy:dm_control/humanoid-walk-v0", action_repeat=2),
}


def go(collector: Collector, actions: Sequence[np.ndarray]) -> None:
    for action in actions:
        collector.step(action)


def table(name: str, num_envs: int, steps: int, rounds: int) -> dict[str, Any]:
    """Measure one kind of environment; print and return a row."""
    make = partial(Collector, ENVIRONMENTS[name], num_envs, 0, partial(ReplayBuffer, 100 * num_envs))
    ways = {"InTurn": make(), "InProcesses": make(in_processes=True)}
    actions = [ways["InTurn"].random_actions(np.random.default_rng(step)) for step in range(steps)]
    found = in_turn({kind: partial(seconds, go, collector, actions) for kind, collector in ways.items()}, rounds)
    for collector in ways.values():
        collector.close()
    middle, least, most = ratio(found["InTurn"], found["InProcesses"])
    row = {way: round(statistics.median(times) / steps * 1000, 3) for way, times in found.items()}
    print(
        f"{name:13s} {num_envs} environments   in turn {row['InTurn']:8.3f} ms   in processes"
        f" {row['InProcesses']:8.3f} ms   × {middle:.2f} ({least:.2f} – {most:.2f})",
        flush=True,
    )
    return {**row, "times_as_fast": round(middle, 2), "range": [round(least, 2), round(most, 2)]}


def main() -> None:
    """Run and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--only", choices=ENVIRONMENTS, nargs="+", default=list(ENVIRONMENTS), metavar="NAME")
    parser.add_argument("--num-envs", type=int, default=2, help="environments that go in step")
    parser.add_argument("--steps", type=int, default=300, help="steps of a round")
    parser.add_argument("--rounds", type=int, default=7, help="how often each way is timed, in turn")
    options = parser.parse_args()
    rows = {name: table(name, options.num_envs, options.steps, options.rounds) for name in options.only}
    publish({"environments": rows, "num_envs": options.num_envs}, options.json)


if __name__ == "__main__":
    main()
