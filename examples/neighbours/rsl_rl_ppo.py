"""rsl-rl-lib: act on actor and critic between two calls of `learn`, when the task has changed."""

from tempfile import TemporaryDirectory

import torch
from rsl_rl.env import VecEnv
from rsl_rl.runners import OnPolicyRunner
from tensordict import TensorDict

from lightning_fire import fire_


# stand-in for your environments: points that move towards a goal
class Points(VecEnv):
    num_envs, num_actions, max_episode_length, device, cfg, step_dt = 32, 2, 20, "cpu", {}, 0.02
    unwrapped = property(lambda self: self)

    def __init__(self, goal):
        self.goal, self.x, self.episode_length_buf = goal, torch.randn(32, 2), torch.zeros(32, dtype=torch.long)

    def get_observations(self):
        return TensorDict({"policy": torch.cat([self.x, self.x - self.goal], 1)}, [32])

    def step(self, actions):
        self.x, self.episode_length_buf = self.x + 0.2 * actions.clamp(-1, 1), self.episode_length_buf + 1
        reward, done = -(self.x - self.goal).norm(dim=1), self.episode_length_buf >= self.max_episode_length
        self.x = torch.where(done[:, None], torch.randn(32, 2), self.x)
        self.episode_length_buf[done] = 0
        return self.get_observations(), reward, done, {"time_outs": done.float()}


# stand-in for your configuration
network = {"class_name": "MLPModel", "hidden_dims": [32, 32], "activation": "elu"}
actor = network | {"distribution_cfg": {"class_name": "GaussianDistribution", "init_std": 1.0}}
configuration = {
    "num_steps_per_env": 20,
    "save_interval": 100,
    "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
    "actor": actor,
    "critic": dict(network),
    "algorithm": {"class_name": "PPO", "learning_rate": 1e-3, "rnd_cfg": None},
}

env = Points(goal=1.0)
runner = OnPolicyRunner(env, configuration, log_dir=None, device="cpu")
algorithm = runner.alg
runner.learn(10)
env.goal = -1.0
print(fire_([algorithm.actor, algorithm.critic], optimizers=algorithm.optimizer))
runner.learn(10)
model = [algorithm.actor, algorithm.critic]

with TemporaryDirectory() as folder:
    runner.save(f"{folder}/model.pt")
    saved = torch.load(f"{folder}/model.pt", weights_only=True)["actor_state_dict"]
assert all(torch.equal(saved[name], value) for name, value in algorithm.actor.state_dict().items())
