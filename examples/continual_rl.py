"""A pendulum that changes 9 times: PPO learns it worse than a new network would, and what helps.

python examples/continual_rl.py runs/continual_rl                 # 8 methods, 5 seeds; see docs/continual_rl.md

A task is gymnasium's Pendulum with three torques to choose from. Each task has its own order and signs of the
observations, order of the torques, gravity and length. The change of the task is known: each method acts then,
and only then. The network and its budget for a task are always the same.
"""

import argparse
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from torch import nn

from lightning_fire import EveryNSteps, Parameters, Weights
from lightning_fire.board.changing_pendulum import LENGTH, ChangingPendulum
from lightning_fire.functional import dormant_fraction
from lightning_fire.integrations.stable_baselines3 import PlasticityCallback
from lightning_fire.methods import (
    FIRE,
    Change,
    EventMethod,
    FullReset,
    Loop,
    OptimizerReset,
    ReDo,
    ShrinkAndPerturb,
)

RESETS = ("reset_optimizer", "reset_head", "full_reset", "shrink_and_perturb", "redo")
EVERY_MATRIX = Weights(vectors=True)  # with the head of values, of one row
METHODS = ("vanilla", *RESETS, "fire", "fire_procrustes")
ENVIRONMENTS, STEPS, ROLLOUTS = 32, 64, 15  # side by side, steps of each in a rollout, rollouts in a task
TIMESTEPS = ENVIRONMENTS * STEPS * ROLLOUTS  # of a task: 30,720
LAST = 5  # tasks at the end that the table is about


class Results(BaseCallback):
    """Records the result of each task, before a method acts. It draws no random numbers of the training."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[dict[str, float]] = []
        self.observations = torch.zeros(1, 3)

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        if self.num_timesteps and self.num_timesteps % TIMESTEPS == 0:
            self.note()

    def _on_training_end(self) -> None:
        self.note()

    @torch.no_grad()
    def note(self) -> None:
        env, policy, task = self.training_env, self.model.policy, len(self.rows)
        online, env.rewards = LENGTH * float(np.mean(env.rewards)), []
        judge = ChangingPendulum(64, env.task_seed, steps=0, task=task, length=LENGTH)
        offline, self.observations = judge.play(lambda seen: policy.get_distribution(seen).mode())
        dormant = []
        for hidden, layers in zip([self.observations] * 2, policy.mlp_extractor.children(), strict=True):
            for layer in layers:
                hidden = layer(hidden)
                if isinstance(layer, nn.ReLU):
                    dormant.append(float(dormant_fraction(hidden.mean(0), 0.025)))
        result = {
            "task": task,
            "return": offline,
            "online_return": online,
            "dormant_fraction": float(np.mean(dormant)),
            "weight_norm": float(nn.utils.parameters_to_vector(policy.parameters()).norm()),
            "entropy": float(policy.get_distribution(self.observations).entropy().mean()),
        }
        self.rows.append(result)


def agent_of(seed: int) -> PPO:
    """Return PPO as it is often written: two hidden layers, ReLU, Adam's own defaults, gradients not clipped."""
    adam = {"eps": 1e-8, "fused": True}
    return PPO(
        "MlpPolicy",
        ChangingPendulum(ENVIRONMENTS, seed, STEPS * ROLLOUTS, length=LENGTH),
        learning_rate=3e-3,
        n_steps=STEPS,
        batch_size=512,
        n_epochs=10,
        gamma=0.95,
        max_grad_norm=float("inf"),
        policy_kwargs={"net_arch": [64, 64], "activation_fn": nn.ReLU, "optimizer_kwargs": adam},
        seed=seed,
        device="cpu",
    )


class ReDoOnLastTask(EventMethod):
    """ReDo that judges units on the observations of the last task's result."""

    name = "redo"

    def __init__(self, results: Results):
        self.results = results

    def plan(self, model: nn.Module, training: Loop) -> Change:
        observations, seed = self.results.observations, len(self.results.rows)
        loop = Loop(training.optimizers, forward=lambda: model(observations, deterministic=True))
        return ReDo(threshold=0.1, seed=seed).plan(model, loop)


def callbacks_of(method: str, results: Results) -> list[BaseCallback]:
    """Callbacks of a method for a new agent, which act at each change of the task."""
    acts = {
        "reset_optimizer": OptimizerReset(),
        "reset_head": FullReset(where=Parameters(include=["^action_net", "^value_net"])),
        "full_reset": FullReset(),
        "shrink_and_perturb": ShrinkAndPerturb(strength=0.8),
        "redo": ReDoOnLastTask(results),
        "fire": FIRE(where=EVERY_MATRIX),
        "fire_procrustes": FIRE(where=EVERY_MATRIX, scale="procrustes"),
    }
    return [] if method == "vanilla" else [PlasticityCallback(acts[method], EveryNSteps(TIMESTEPS))]


def run(method: str, seed: int, tasks: int, folder: Path) -> None:
    """Train on all tasks and write a row for each; a run that is there is kept."""
    import pandas as pd

    path = folder / "runs" / f"{method}_seed{seed}.csv"
    if path.exists():
        return
    start, agent, results = time.process_time(), agent_of(seed), Results()
    agent.learn(tasks * TIMESTEPS, [results, *callbacks_of(method, results)])
    table = pd.DataFrame(results.rows)
    table.insert(0, "method", method)
    table.insert(1, "seed", seed)
    table["cpu_seconds"] = time.process_time() - start
    path.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(path.with_suffix(".part"), index=False)
    path.with_suffix(".part").rename(path)


def prepare() -> None:
    """Make a process that trains faster: one thread, and no checks in each distribution."""
    torch.set_num_threads(1)
    torch.distributions.Distribution.set_default_validate_args(False)


def report(folder: Path, reference: str) -> str:
    """Return the table over the last tasks, with differences to a method, and draw the figure of all tasks."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import pandas as pd

    from lightning_fire.experiments.statistics import difference

    table = pd.concat([pd.read_csv(path) for path in sorted((folder / "runs").glob("*.csv"))])
    table.to_csv(folder / "results.csv", index=False)
    early, late = table[table.task < LAST], table[table.task > table.task.max() - LAST]
    first, last = (part.groupby(["method", "seed"]).mean() for part in (early, late))
    lines = [
        f"| method | first {LAST} tasks | last {LAST} tasks | minus {reference} (95 %) | while learning |"
        f" minus {reference} (95 %) | dormant, % | weight norm | CPU seconds |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    figure, panels = plt.subplots(1, 3, figsize=(15, 4.8))
    for method in [name for name in METHODS if name in set(table.method)]:
        own, other = last.loc[method], last.loc[reference]
        cells = [method, f"{first.loc[method]['return'].mean():.0f}"]
        for column in ("return", "online_return"):
            mean, low, high = difference(own[column].to_dict(), other[column].to_dict())
            cells.append(f"{own[column].mean():.0f} ± {own[column].std():.0f}")
            cells.append("" if method == reference else f"{mean:+.0f} ({low:+.0f} to {high:+.0f})")
        cells += [f"{100 * own.dormant_fraction.mean():.0f}", f"{own.weight_norm.mean():.0f}"]
        lines.append(f"| {' | '.join([*cells, f'{own.cpu_seconds.mean():.0f}'])} |")
        of_method = table[table.method == method]
        for panel, column in zip(panels, ("return", "online_return", "dormant_fraction"), strict=True):
            by_task = of_method.groupby("task")[column].mean()
            style = {"color": "black", "linewidth": 3} if method == "vanilla" else {"linewidth": 1.8}
            line = panel.plot(by_task, label=method.replace("_", " "), **style)[0]
            panel.plot(of_method.task, of_method[column], ".", color=line.get_color(), markersize=3, alpha=0.3)
    for panel, title in zip(
        panels, ("return after each task", "return while learning it", "dormant units"), strict=True
    ):
        panel.set(title=title, xlabel="task")
        panel.grid(alpha=0.3)
    panels[2].legend(fontsize=8, loc="upper left")
    figure.tight_layout()
    figure.savefig(folder / "continual_rl.png", dpi=100)
    plt.close(figure)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where results are kept; what is there is not run again")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--reference", choices=METHODS, default="vanilla", help="what the others are compared with")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0, help="the setting was chosen on seeds from 100")
    parser.add_argument("--tasks", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=2, help="trainings side by side")
    options = parser.parse_args()
    start = time.perf_counter()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, context, prepare) as pool:
        waiting = [
            pool.submit(run, method, seed, options.tasks, options.folder)
            for seed in range(options.first_seed, options.first_seed + options.seeds)
            for method in dict.fromkeys((options.reference, *options.methods))
        ]
        for each in waiting:
            each.result()
    print(report(options.folder, options.reference))
    print(f"\n{(time.perf_counter() - start) / 60:.1f} minutes; {options.folder / 'results.csv'} has every task")


if __name__ == "__main__":
    main()
