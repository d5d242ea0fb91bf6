"""gymnasium: a loop in one file, like CleanRL's DQN, whose environment changes in the middle."""

import random

import gymnasium
import torch
from torch import nn

from lightning_fire import fire_

# stand-in for your networks, environment and buffer
q_network, target_network = (
    nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)) for _ in range(2)
)
optimizer = torch.optim.Adam(q_network.parameters(), lr=2.5e-4)
env, buffer = gymnasium.make("CartPole-v1"), []
observation = env.reset(seed=0)[0]


# stand-in for a step of yours in the environment
def act(observation):
    best = int(q_network(torch.tensor(observation)).argmax())
    action = random.choice([best, random.randrange(2)])
    following, reward, terminated, truncated, _ = env.step(action)
    buffer.append(list(map(torch.tensor, (observation, action, reward, following, float(terminated)))))
    return env.reset()[0] if terminated or truncated else following


# stand-in for an update of yours
def update():
    x, action, reward, following, end = map(torch.stack, zip(*random.choices(buffer, k=64), strict=True))
    with torch.no_grad():
        targets = reward + 0.99 * (1 - end) * target_network(following).amax(1)
    loss = (q_network(x).gather(1, action[:, None])[:, 0] - targets).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


for step in range(600):
    if step % 100 == 0:
        target_network.load_state_dict(q_network.state_dict())
    if step == 300:
        env.unwrapped.force_mag = -10.0  # the environment changes
        buffer.clear()  # it holds steps of the environment before
        print(fire_(q_network, optimizers=optimizer))
        target_network.load_state_dict(q_network.state_dict())
    observation = act(observation)
    update()
model = q_network
