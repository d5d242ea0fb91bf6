"""A CartPole whose motor changes: does PPO of Stable-Baselines3 continue, reset, or train from scratch?

python examples/neighbours/decisions/stable_baselines3_ppo.py weaker runs/weaker      # 40 % of the force
python examples/neighbours/decisions/stable_baselines3_ppo.py reversed runs/reversed  # the force in the other direction
"""

import sys
from functools import partial
from pathlib import Path

import gymnasium
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from lightning_fire import FIRE, ShrinkAndPerturb, decide

FORCES = {"before": 10.0, "weaker": 4.0, "reversed": -10.0}
# of Stable-Baselines3's Zoo for CartPole, with a learning rate that does not fall
SETTINGS = {"n_steps": 32, "batch_size": 256, "n_epochs": 20, "gamma": 0.98, "gae_lambda": 0.8, "learning_rate": 1e-3}


def cartpole(motor):
    env = gymnasium.make("CartPole-v1")
    env.unwrapped.force_mag = FORCES[motor]
    return env


def environments(motor, seed):
    return make_vec_env(partial(cartpole, motor), n_envs=8, seed=seed)


def agent_of(motor, seed):
    return PPO("MlpPolicy", environments(motor, seed), seed=seed, device="cpu", **SETTINGS)


def train(seed, start):
    agent = agent_of(motor, seed)
    start(agent.policy)
    agent.learn(10_240)
    return evaluate_policy(agent, environments(motor, 1000 + seed), n_eval_episodes=40)[0]


if __name__ == "__main__":
    torch.set_num_threads(1)
    motor, folder = sys.argv[1], Path(sys.argv[2])
    old = folder / "old.pt"
    if not old.exists():
        folder.mkdir(parents=True, exist_ok=True)
        agent = agent_of("before", seed=0)
        agent.learn(51_200)
        torch.save(agent.policy.state_dict(), old)
    methods = {"fire": FIRE(), "fire_procrustes": FIRE(scale="procrustes"), "shrink_and_perturb": ShrinkAndPerturb(0.5)}
    decide(train, old, methods, seeds=5, metric="return", output=folder)
