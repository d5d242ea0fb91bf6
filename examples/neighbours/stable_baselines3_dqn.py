"""stable-baselines3: one callback acts when `learn` is called on a changed environment."""

from tempfile import TemporaryDirectory

import gymnasium
import torch
from stable_baselines3 import DQN

from lightning_fire import FIRE, EveryNSteps
from lightning_fire.integrations.stable_baselines3 import PlasticityCallback


# stand-in for your environment
def cartpole(force):
    env = gymnasium.make("CartPole-v1")
    env.unwrapped.force_mag = force
    return env


agent = DQN("MlpPolicy", cartpole(10.0), learning_starts=100, device="cpu")
fire = PlasticityCallback(FIRE(), EveryNSteps(1000))
for force in 10.0, -10.0:
    agent.set_env(cartpole(force))
    agent.replay_buffer.reset()  # it holds steps of the environment before
    agent.learn(1000, callback=fire, reset_num_timesteps=False)
model = agent.q_net

with TemporaryDirectory() as folder:
    agent.save(f"{folder}/agent")
    saved = DQN.load(f"{folder}/agent").q_net.state_dict()
assert all(torch.equal(saved[name], value) for name, value in model.state_dict().items())
