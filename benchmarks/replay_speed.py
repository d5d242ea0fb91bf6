"""Updates a second of DQN and SAC under Lightning, against a CleanRL-style loop, side by side in one run.

    python benchmarks/replay_speed.py [--only cartpole atari simba] [--rounds 3] [--json FILE]

The loop steps one environment in a `SyncVectorEnv` that keeps the statistics of episodes, writes each transition into
arrays with both of its observations (frames stacked by gymnasium's wrapper), draws batches from these, and updates, as
CleanRL's single files do; with logs, it writes to TensorBoard what these write: return and length of each episode, and
every 100 steps the loss, the mean value and the steps per second. The bare loop steps the environment itself,
without returns. Against them a Trainer with our `DQN` or `SAC` and `ReplayDataModule`: alone; and as in the recipes,
with an idle `FIRECallback`, a TensorBoard logger and the progress bar. Left out are evaluations and checkpoints.
Without a GPU, PyTorch looks for one at each step of an optimizer as it does without Lightning, and in our command line:
by CUDA, not by NVML.

- cartpole: CleanRL's network (120, 84) and batch of 128, an update each ten steps.
- atari: Asterix, Nature CNN, the paper's batch of 32 and an update each step.
- simba: SAC with the paper's networks, batch of 256 and two updates each step, on Pendulum-v1.

Both do as many steps and updates, with different random numbers. An epoch warms up, the next is timed. A fraction is
the time of the loop by that of another, of medians over the repetitions; in brackets the smallest and largest.
"""

import copy
import math
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from lightning.pytorch import Callback
from machine import parser_of, wait_for_device
from paired import in_turn, publish_each, share_of_loop
from timed_fit import timed_fit
from torch import Tensor, nn
from torch.nn.functional import smooth_l1_loss, softplus
from torch.utils.tensorboard import SummaryWriter
from torchvision.ops import MLP

from lightning_fire import EveryNSteps, FIRECallback, Log
from lightning_fire.callbacks import ChunkProgressBar
from lightning_fire.cli import ask_cuda_itself
from lightning_fire.data import ReplayDataModule
from lightning_fire.experience import Atari, Gymnasium
from lightning_fire.modules import DQN, SAC
from lightning_fire.nets import NatureCNN, SimBa


class Setting(NamedTuple):
    """Steps of an epoch, steps between updates, updates then, samples of an update, stacked frames."""

    net: str
    steps: int
    every: int
    updates: int
    batch: int
    stack: int
    initial: int


SETTINGS = {
    "cartpole": Setting("cartpole", 5000, 10, 1, 128, 1, 500),
    "atari": Setting("atari", 200, 1, 1, 32, 4, 500),
    "simba": Setting("simba", 100, 1, 2, 256, 1, 500),
}
ENVIRONMENTS: dict[str, Callable[[], gymnasium.Env]] = {
    "cartpole": Gymnasium("CartPole-v1"),
    "atari": Atari("Asterix"),
    "simba": Gymnasium("Pendulum-v1"),
}
CAPACITY, DISCOUNT, TAU = 2000, 0.99, 0.005


def network(setting: Setting) -> nn.Module:
    return NatureCNN(9) if setting.net == "atari" else MLP(4, [120, 84, 2])


class Arrays:
    """Transitions with both of their observations."""

    def __init__(self, observations: gymnasium.spaces.Box, actions: gymnasium.Space):
        kind = np.float32 if observations.dtype == np.float64 else observations.dtype
        self.seen, self.following = (np.zeros((CAPACITY, *observations.shape), kind) for _ in range(2))
        self.actions = np.zeros((CAPACITY, *actions.shape), actions.dtype)
        self.rewards, self.over = np.zeros(CAPACITY, np.float32), np.zeros(CAPACITY, np.float32)
        self.number = 0

    def add(self, *parts: Any) -> None:
        for array, part in zip(self._all(), parts, strict=True):
            array[self.number % CAPACITY] = part
        self.number += 1

    def draw(self, batch: int, device: str) -> list[Tensor]:
        rows = np.random.randint(0, min(self.number, CAPACITY), batch)
        return [torch.as_tensor(array[rows]).to(device) for array in self._all()]

    def _all(self) -> list[np.ndarray]:
        return [self.seen, self.actions, self.rewards, self.following, self.over]


def dqn_of(setting: Setting, device: str) -> tuple[Callable, Callable]:
    """Return how to act and how to update."""
    net = network(setting).to(device)
    target = copy.deepcopy(net)
    optimizer = torch.optim.Adam(net.parameters(), lr=6.25e-5, eps=1.5e-4)
    updates = 0

    def act(seen: np.ndarray, share: float) -> np.ndarray:
        if np.random.rand() < share:
            return np.random.randint(9 if setting.net == "atari" else 2, size=1)
        with torch.no_grad():
            return net(torch.as_tensor(seen).to(device)).argmax(1).cpu().numpy()

    def update(seen: Tensor, actions: Tensor, rewards: Tensor, following: Tensor, over: Tensor) -> tuple[Tensor, ...]:
        nonlocal updates
        with torch.no_grad():
            goals = rewards + DISCOUNT * target(following).amax(1) * (1 - over)
        taken = net(seen).gather(1, actions[:, None]).squeeze(1)
        loss = smooth_l1_loss(taken, goals)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        updates += 1
        if updates % 2000 == 0:
            target.load_state_dict(net.state_dict())
        return loss, taken

    return act, update


def sac_of(setting: Setting, device: str) -> tuple[Callable, Callable]:
    """Return how to act and how to update."""
    actor = SimBa(3, 2, 128, 1, heads=2).to(device)
    critics = nn.ModuleList([SimBa(4, 1, 512, 2), SimBa(4, 1, 512, 2)]).to(device)
    targets = copy.deepcopy(critics).requires_grad_(False)
    log_temperature = torch.zeros((), device=device, requires_grad=True)
    optimizers = [torch.optim.AdamW(net.parameters(), lr=1e-4) for net in (actor, critics)]
    temperature_optimizer = torch.optim.Adam([log_temperature], lr=1e-4)

    def sample(seen: Tensor) -> tuple[Tensor, Tensor]:
        mean, raw = actor(seen).chunk(2, -1)
        normal = torch.distributions.Normal(mean, (-10 + 6 * (1 + raw.tanh())).exp())
        drawn = normal.rsample()
        squashed = 2 * (math.log(2) - drawn - softplus(-2 * drawn))
        return drawn.tanh(), (normal.log_prob(drawn) - squashed).sum(1)

    def values(nets: nn.ModuleList, seen: Tensor, actions: Tensor) -> Tensor:
        return torch.cat([net(torch.cat([seen, actions], 1)) for net in nets], 1)

    def act(seen: np.ndarray, share: float) -> np.ndarray:
        with torch.no_grad():
            return sample(torch.as_tensor(seen).to(device))[0].cpu().numpy()

    def update(seen: Tensor, actions: Tensor, rewards: Tensor, following: Tensor, over: Tensor) -> tuple[Tensor, ...]:
        actor_optimizer, critic_optimizer = optimizers
        critics.requires_grad_(False)
        drawn, density = sample(seen)
        actor_loss = (log_temperature.exp().detach() * density - values(critics, seen, drawn).amin(1)).mean()
        critics.requires_grad_(True)
        actor_optimizer.zero_grad()
        actor_loss.backward()
        actor_optimizer.step()
        temperature_loss = -(log_temperature.exp() * (density.detach() - 0.5)).mean()
        temperature_optimizer.zero_grad()
        temperature_loss.backward()
        temperature_optimizer.step()
        with torch.no_grad():
            drawn, density = sample(following)
            best = values(targets, following, drawn).amin(1) - log_temperature.exp() * density
            goals = rewards + DISCOUNT * best * (1 - over)
        taken = values(critics, seen, actions)
        critic_loss = (taken - goals[:, None]).square().sum(1).mean()
        critic_optimizer.zero_grad()
        critic_loss.backward()
        critic_optimizer.step()
        with torch.no_grad():
            for target, trained in zip(targets.parameters(), critics.parameters(), strict=True):
                target.lerp_(trained, TAU)
        return critic_loss, taken

    return act, update


class Single:
    """Steps one environment as a vector of one, with minimal overhead."""

    def __init__(self, make: Callable[[], gymnasium.Env]):
        self.env = make()
        self.single_observation_space, self.single_action_space = self.env.observation_space, self.env.action_space

    def reset(self, seed: int) -> tuple[np.ndarray, dict]:
        return self.env.reset(seed=seed)[0][None], {}

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, list, list, list, dict]:
        seen, reward, terminated, truncated, _ = self.env.step(actions[0])
        last = {"final_obs": [seen]} if terminated or truncated else {}
        seen = self.env.reset()[0] if last else seen
        return seen[None], [reward], [terminated], [truncated], last


def vector(make: Callable[[], gymnasium.Env]) -> gymnasium.vector.VectorEnv:
    """Return one environment as CleanRL steps it."""
    with_statistics = lambda: gymnasium.wrappers.RecordEpisodeStatistics(make())  # noqa: E731
    return gymnasium.vector.SyncVectorEnv([with_statistics], autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP)


def environment_of(setting: Setting) -> gymnasium.Env:
    """Return the environment, its actions scaled and its frames stacked."""
    env = ENVIRONMENTS[setting.net]()
    if setting.net == "simba":
        env = gymnasium.wrappers.RescaleAction(env, np.float32(-1), np.float32(1))
    if setting.stack > 1:
        env = gymnasium.wrappers.FrameStackObservation(env, setting.stack, padding_type="zero")
    return env


def loop_with_logs(setting: Setting) -> float:
    """Train without Lightning, with the logs of CleanRL; return the seconds of an epoch."""
    with tempfile.TemporaryDirectory() as folder, SummaryWriter(folder) as writer:
        return loop(setting, writer=writer)


def loop(
    setting: Setting,
    around: Callable[[Callable[[], gymnasium.Env]], Any] = vector,
    writer: SummaryWriter | None = None,
) -> float:
    """Train without Lightning; return the seconds of an epoch."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    act, update = (sac_of if setting.net == "simba" else dqn_of)(setting, device)
    env = around(partial(environment_of, setting))
    arrays = Arrays(env.single_observation_space, env.single_action_space)
    seen, _ = env.reset(seed=0)
    began = time.perf_counter()
    for step in range(setting.initial + 2 * setting.steps):
        if step == setting.initial + setting.steps:
            wait_for_device()
            start = time.perf_counter()
        learning = step - setting.initial
        actions = env.single_action_space.sample()[None] if learning < 0 else act(seen, 0.01)
        following, rewards, terminated, truncated, infos = env.step(actions)
        reward = float(np.clip(rewards[0], -1, 1)) if setting.net == "atari" else rewards[0]
        last = infos["final_obs"] if terminated[0] or truncated[0] else following
        arrays.add(seen[0], actions[0], reward, last[0], terminated[0])
        seen = following
        if writer is not None and "final_info" in infos:
            episode = infos["final_info"]["episode"]
            writer.add_scalar("charts/episodic_return", episode["r"][0], step)
            writer.add_scalar("charts/episodic_length", episode["l"][0], step)
        if learning >= 0 and (learning + 1) % setting.every == 0:
            for _ in range(setting.updates):
                loss, values = update(*arrays.draw(setting.batch, device))
            if writer is not None and (learning + 1) % 100 == 0:
                writer.add_scalar("losses/loss", loss.item(), step)
                writer.add_scalar("losses/q_values", values.mean().item(), step)
                writer.add_scalar("charts/SPS", int(step / (time.perf_counter() - began)), step)
    wait_for_device()
    return time.perf_counter() - start


def lightning(setting: Setting, callbacks: Callable[[], list[Callback]]) -> float:
    """Train with Lightning; return the seconds of an epoch."""
    torch.manual_seed(0)
    if setting.net == "simba":
        module = SAC(SimBa(3, 2, 128, 1, heads=2), SimBa(4, 1, 512, 2), 3)
    else:
        module = DQN(network(setting), epsilon_steps=1)
    data = ReplayDataModule(
        ENVIRONMENTS[setting.net],
        setting.steps,
        setting.updates / setting.every,
        setting.batch,
        CAPACITY,
        setting.initial,
        setting.every,
        stack=setting.stack,
        reward_clip=1.0 if setting.net == "atari" else None,
    )
    (seconds,) = timed_fit(module, data, callbacks(), 2)
    if data.environment_steps != setting.initial + 2 * setting.steps:
        raise SystemExit(f"{data.environment_steps} steps were done: it is not the same work")
    return seconds


WAYS: dict[str, Callable[[Setting], float]] = {
    "loop": loop,
    "loop with logs": loop_with_logs,
    "bare": partial(loop, around=Single),
    "Lightning": partial(lightning, callbacks=list),
    "as the recipes": partial(
        lightning, callbacks=lambda: [FIRECallback(EveryNSteps(10**9), log=Log(curvature=False)), ChunkProgressBar()]
    ),
}


def table(setting: Setting, rounds: int) -> dict[str, dict]:
    """Measure one setting; print and return a row for each way."""
    found = in_turn({name: partial(way, setting) for name, way in WAYS.items()}, rounds)
    updates, rows = setting.steps // setting.every * setting.updates, {}
    for name, times in found.items():
        row, share = share_of_loop(found["loop"], times)
        speed = updates / statistics.median(times)
        rows[name] = {"updates_a_second": round(speed, 1), **row}
        print(f"{setting.net:9s} {name:16s} {speed:9.1f} updates a second   {share}", flush=True)
    return rows


def main() -> None:
    """Run and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--only", choices=SETTINGS, nargs="+", default=list(SETTINGS), metavar="NAME")
    parser.add_argument("--rounds", type=int, default=3, help="trainings timed of each way, in turn")
    for name in ("steps", "every", "updates", "batch", "initial"):
        parser.add_argument(f"--{name}", type=int, help="instead of the setting's")
    ask_cuda_itself()
    publish_each(table, SETTINGS, parser.parse_args())


if __name__ == "__main__":
    main()
