"""The board's task of reinforcement learning: a pendulum that changes many times, learned by DQN from random actions.

Actions are always random, independent of the network, and episodes start in any state: for a given seed all methods
learn from the same transitions in the same batches. Methods then differ in learning, not in exploration. The greedy
policy of the network is only evaluated.
"""

import zlib
from collections.abc import Callable, Iterable
from typing import Any

from stable_baselines3 import DQN
from torch import nn
from torch.optim import Optimizer

from lightning_fire.board.changing_pendulum import ChangingPendulum
from lightning_fire.integrations.stable_baselines3 import PlasticityCallback
from lightning_fire.methods import EventMethod, Method
from lightning_fire.when import EveryNSteps

_PENDULUMS, _BATCH, _FIRST = 64, 64, 8  # pendulums; transitions per batch; steps of each before the first update
_LENGTH, _SPEED = 20, 8.0  # of training episodes, which are short and start in any state


def train(
    seed: int,
    method: Method | None,
    log: Callable[[str, float, int], None],
    tasks: int = 24,
    steps: int = 64,
    updates: int = 8,
    hidden: int = 64,
    optimizer: Callable[[Iterable[Any]], Optimizer] | None = None,
    parameter_groups: Callable[[nn.Module], Any] | None = None,
) -> None:
    """Learn one task after the other; after each, log `return`, that of the greedy policy, by task number.

    Also logs `data/checksum` of the transitions of each task, which is equal for all methods.

    At a change the replay buffer is emptied and the method acts, on new data if it needs data; then target networks are
    copied. A method that acts at every step always acts. Its metrics are logged, too.

    Args:
        seed: Seed of the network, the tasks and the actions.
        method: The method; None: vanilla.
        log: Logs a number.
        tasks: Number of tasks.
        steps: Steps of each of 64 pendulums per task.
        updates: Optimizer steps after each of these steps except the first 8.
        hidden: Units of each of two hidden layers, ReLU.
        optimizer: Makes the optimizer from parameters or their groups. Default: Adam with a learning rate of 0.003.
        parameter_groups: Makes the groups from the network, such as `muon_groups`.
    """

    length = _PENDULUMS * steps
    agent = _agent(seed, length, updates, hidden, optimizer, parameter_groups)
    when = EveryNSteps(length) if isinstance(method, EventMethod) else None
    callback = None if method is None else PlasticityCallback(method, when, log_every=length)

    for task in range(tasks):
        agent.set_env(_pendulums(seed, task))
        agent.replay_buffer.reset()
        agent.learning_starts = agent.num_timesteps + _FIRST * _PENDULUMS
        agent.learn(length, callback=callback, log_interval=None, reset_num_timesteps=False)
        for key, value in agent.logger.name_to_value.items():
            log(key, value, task)
        agent.logger.dump()
        log("data/checksum", _checksum(agent.replay_buffer), task)
        log("return", ChangingPendulum(100, seed, 0, task).play(lambda seen: agent.q_net(seen).argmax(1))[0], task)


def _pendulums(seed: int, task: int) -> ChangingPendulum:
    return ChangingPendulum(_PENDULUMS, seed, 0, task, _LENGTH, _SPEED)


def _agent(
    seed: int,
    length: int,
    updates: int,
    hidden: int,
    optimizer: Callable[[Iterable[Any]], Optimizer] | None,
    parameter_groups: Callable[[nn.Module], Any] | None,
) -> Any:
    """Return a new DQN that acts at random and stores the transitions of one task; arguments as in `train`."""
    agent: Any = DQN(
        "MlpPolicy",
        _pendulums(seed, 0),
        learning_rate=3e-3,
        buffer_size=length,
        batch_size=_BATCH,
        gamma=0.95,
        tau=0.3,
        target_update_interval=_PENDULUMS,
        train_freq=1,
        gradient_steps=updates,
        exploration_initial_eps=1.0,
        exploration_final_eps=1.0,
        max_grad_norm=float("inf"),
        policy_kwargs={"net_arch": [hidden, hidden], "activation_fn": nn.ReLU, "optimizer_kwargs": {"fused": True}},
        seed=seed,
        device="cpu",
    )
    if optimizer is not None:
        agent.policy.optimizer = optimizer((parameter_groups or nn.Module.parameters)(agent.q_net))
        rate = agent.policy.optimizer.param_groups[0]["lr"]
        agent.lr_schedule = lambda progress: rate
    return agent


def _checksum(buffer: Any) -> int:
    """Return a checksum of the transitions in a replay buffer that float32 represents exactly."""
    parts = (buffer.observations, buffer.next_observations, buffer.actions, buffer.rewards, buffer.dones)
    return zlib.crc32(b"".join(part.tobytes() for part in parts)) % 2**24
