"""Returns of our DQN and SAC and of those of Stable-Baselines3, with the same budget, side by side in one run.

    pip install stable-baselines3
    python benchmarks/stable_baselines.py [--only cartpole pendulum] [--seeds 3] [--json FILE]

- cartpole: DQN on CartPole-v1 for 52,200 steps, with the settings of RL Baselines3 Zoo; solved from a return of 475.
- pendulum: SAC on Pendulum-v1 for 5,100 steps, with those of the Zoo, which trains 20,000.

Stable-Baselines3 copies its target network every ten steps, which is once between two rollouts of 256 steps; ours every
128 updates is the same. Ours normalises SAC's observations. Both are evaluated five times, without random
actions. Printed are the returns of the last evaluation and the best of the five, mean and standard deviation
(n - 1) over the seeds, and the seconds of a training with its evaluations.
"""

import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import lightning.pytorch as pl
from machine import parser_of, publish
from quiet_trainer import quiet_trainer
from torch.optim import Adam
from torchvision.ops import MLP

from lightning_fire.data import ReplayDataModule
from lightning_fire.experience import Gymnasium
from lightning_fire.experiments.tables import with_spread
from lightning_fire.modules import DQN, SAC

EVALUATIONS = 5
EVERY = {"cartpole": 10_240, "pendulum": 1_000}  # steps from one evaluation to the next
INITIAL = {"cartpole": 1_000, "pendulum": 100}  # random steps at the beginning
NAMES = {"cartpole": "CartPole-v1", "pendulum": "Pendulum-v1"}


def theirs(task: str, seed: int, every: int, episodes: int) -> list[float]:
    """Train with Stable-Baselines3; return the mean returns of the evaluations."""
    from stable_baselines3 import DQN as TheirDQN
    from stable_baselines3 import SAC as TheirSAC
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.monitor import Monitor

    class Evaluate(BaseCallback):
        def _on_step(self) -> bool:
            learnt = self.num_timesteps - INITIAL[task]
            if learnt > 0 and learnt % every == 0:
                returns.append(float(evaluate_policy(self.model, own, episodes, deterministic=True)[0]))
            return True

    returns: list[float] = []
    own, steps = Monitor(gymnasium.make(NAMES[task])), INITIAL[task] + EVALUATIONS * every
    if task == "cartpole":
        model = TheirDQN(
            "MlpPolicy",
            NAMES[task],
            learning_rate=2.3e-3,
            batch_size=64,
            buffer_size=100_000,
            learning_starts=INITIAL[task],
            train_freq=256,
            gradient_steps=128,
            target_update_interval=10,
            exploration_fraction=8000 / steps,
            exploration_final_eps=0.04,
            policy_kwargs={"net_arch": [256, 256]},
            seed=seed,
            device="cpu",
        )
    else:
        model = TheirSAC(
            "MlpPolicy",
            NAMES[task],
            learning_rate=1e-3,
            batch_size=256,
            learning_starts=INITIAL[task],
            seed=seed,
            device="cpu",
        )
    model.learn(steps + 255, callback=Evaluate())  # the last rollout may be cut by the evaluation
    return returns[:EVALUATIONS]


class Returns(pl.Callback):
    """Keeps the mean returns of the evaluations."""

    def __init__(self):
        self.found: list[float] = []

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.found.append(float(trainer.callback_metrics["val/episode_return"]))


def ours(task: str, seed: int, every: int, episodes: int) -> list[float]:
    """Train with lightning-fire; return the mean returns of the evaluations."""
    pl.seed_everything(seed, verbose=False)
    if task == "cartpole":
        adam = partial(Adam, lr=2.3e-3)
        net = MLP(4, [256, 256, 2])
        module = DQN(net, adam, target_update_period=128, epsilon=0.04, epsilon_steps=8000, evaluation_epsilon=0.0)
        rounds = {"replay_ratio": 0.5, "steps_per_round": 256, "batch_size": 64}
    else:
        adam = partial(Adam, lr=1e-3)
        nets = MLP(3, [256, 256, 2]), MLP(4, [256, 256, 1])
        module = SAC(*nets, 3, adam, adam, temperature=1.0, target_entropy=-1.0)
        rounds = {"batch_size": 256}
    budget = {"steps_per_epoch": every, "initial_steps": INITIAL[task], "capacity": 100_000}
    data = ReplayDataModule(Gymnasium(NAMES[task]), **budget, **rounds, evaluation_episodes=episodes, seed=seed)
    returns = Returns()
    trainer = quiet_trainer(returns, max_epochs=EVALUATIONS, accelerator="cpu", num_sanity_val_steps=0)
    trainer.fit(module, datamodule=data)
    return returns.found


TRAININGS = {"stable-baselines3": theirs, "lightning-fire": ours}


def timed(train: Callable[..., list[float]], task: str, seed: int, every: int, episodes: int) -> dict[str, Any]:
    start = time.perf_counter()
    returns = [round(value, 1) for value in train(task, seed, every, episodes)]
    return {"returns": returns, "seconds": round(time.perf_counter() - start, 1)}


def main() -> None:
    """Run and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--only", choices=EVERY, nargs="+", default=list(EVERY), metavar="NAME")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--of", choices=TRAININGS, nargs="+", default=list(TRAININGS), metavar="LIBRARY")
    parser.add_argument("--every", type=int, help="steps from one evaluation to the next, instead of the task's")
    parser.add_argument("--episodes", type=int, default=20, help="of an evaluation")
    options = parser.parse_args()
    results: dict[str, dict[str, list]] = {}
    for task in options.only:
        results[task] = {name: [] for name in options.of}
        budget = {"every": options.every or EVERY[task], "episodes": options.episodes}
        for seed in range(options.seeds):
            for name in options.of:
                run = timed(TRAININGS[name], task, seed, **budget)
                results[task][name].append(run)
                print(f"{task:9s} {name:18s} seed {seed}  {run['returns']}  {run['seconds']:.0f} s", file=sys.stderr)
        for name, runs in results[task].items():
            last, best = ([pick(run["returns"]) for run in runs] for pick in (lambda r: r[-1], max))
            seconds = statistics.median(run["seconds"] for run in runs)
            found = f"last {with_spread(last, 1)}, best {with_spread(best, 1)}, {seconds:.0f} s"
            print(f"{task:9s} {name:18s} {found}", flush=True)
    publish({"tasks": results}, options.json)


if __name__ == "__main__":
    main()
